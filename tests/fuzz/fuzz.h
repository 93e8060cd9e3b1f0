/**
 * What every fuzz target shares: FUZZ_CHECK, and a main() that replays files where the
 * target is built without libFuzzer (HVI_LIBFUZZER is then not defined). A target is
 * one file that includes this and defines LLVMFuzzerTestOneInput(). A program with a
 * main() of its own defines HVI_FUZZ_NO_MAIN first.
 */
#ifndef HVI_FUZZ_H
#define HVI_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of the code under test; abort() is what libFuzzer calls a crash. */
#define FUZZ_CHECK(cond, ...)                                                          \
    do {                                                                               \
        if (!(cond)) {                                                                 \
            fprintf(stderr, "%s:%d: broken promise: %s:", __FILE__, __LINE__, #cond);  \
            fprintf(stderr, " " __VA_ARGS__);                                          \
            fputc('\n', stderr);                                                       \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/** Error texts end, say something, and hold nothing that moves a terminal's cursor. */
static inline void fuzz_check_text(const char *text, size_t cap)
{
    size_t n = strnlen(text, cap);

    FUZZ_CHECK(n > 0 && n < cap, "a text of %zu bytes", n);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK((uint8_t)text[i] >= ' ' && text[i] != 0x7f, "byte %d", text[i]);
}

#if !defined(HVI_LIBFUZZER) && !defined(HVI_FUZZ_NO_MAIN)
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

static inline int replay_file(const char *path)
{
    FILE *f = fopen(path, "re");
    uint8_t *data = NULL;
    size_t size = 0;
    long end = 0;

    if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (end = ftell(f)) >= 0) {
        rewind(f);
        data = malloc((size_t)end + 1); /* a read beyond it is seen by ASan */
        if (data != NULL)
            size = fread(data, 1, (size_t)end, f);
    }
    if (data == NULL || size != (size_t)end) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    fclose(f);
    (void)LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 1;
}

/* Files, and the files of directories. */
static inline int replay_path(const char *path)
{
    struct dirent *entry;
    struct stat st;
    int files = 0;
    DIR *dir;

    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
        return replay_file(path);
    dir = opendir(path);
    if (dir == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    while ((entry = readdir(dir)) != NULL) {
        char inner[4096];

        if (entry->d_name[0] == '.')
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (stat(inner, &st) == 0 && S_ISREG(st.st_mode))
            files += replay_file(inner);
    }
    closedir(dir);
    return files;
}

int main(int argc, char **argv)
{
    int files = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE|DIRECTORY...   runs each file once\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++)
        files += replay_path(argv[i]);
    printf("%d files replayed\n", files);
    return 0;
}
#endif

#endif
