"""One rank of horovod.run(): python -m horovod.runner.run_task

Where the function is, and the key that signs what travels, are in its environment: hvdrun
hands that on without a command line.
"""

import os
import sys
import traceback

from horovod.runner import _function
from horovod.runner.common.util import codec, network


def _call(client):
    """(True, result as text of codec), or (False, text of what the function raised)"""
    try:
        func, args, kwargs = codec.loads_base64(client._send(_function.FunctionRequest()).pickled)
        return True, codec.dumps_base64(func(*args, **kwargs))
    except BaseException:
        return False, traceback.format_exc()


def _client(addresses, key):
    """Client of the service, which is on hvdrun's host: first where its coordinator is."""
    name = _function.FunctionService.NAME
    host = os.environ.get("HVD_COORDINATOR", "").rpartition(":")[0]
    port = next(iter(addresses.values()))[0][1]
    try:
        return network.BasicClient(name, {"": [(host, port)]} if host else {}, key, 0)
    except network.NoValidAddressesFound:
        return network.BasicClient(name, addresses, key, 0)


def main(addr=None, port=None):
    """Call the function of the FunctionService and send it the result; 1 when it failed.

    addr, port  where the service is, in place of the addresses in the environment
    """
    if _function.ADDRESSES not in os.environ:
        raise SystemExit("horovod.runner.run_task: %s is not set: only horovod.run() starts "
                         "this" % _function.ADDRESSES)
    addresses, key = codec.loads_base64(os.environ[_function.ADDRESSES])
    if addr is not None:
        addresses = {"": [(addr, port)]}
    client = _client(addresses, key)
    ok, value = _call(client)
    client._send(_function.ResultRequest(int(os.environ.get("HOROVOD_RANK", 0)), ok, value))
    if not ok:
        sys.stderr.write(value)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
