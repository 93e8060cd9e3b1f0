/* One payload. First byte: its type; the rest is the payload. */
#include "tests/fuzz/payload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0)
        check_payload(data[0], data + 1, size - 1);
    return 0;
}
