"""How the ranks of horovod.run() have its function, and how their results come back."""

import threading

from horovod.runner.common.util import codec, network, secret

ADDRESSES = "HVD_RUN_FUNCTION"


class FunctionRequest:
    """Send the function with its arguments."""


class Function:
    """Those, as text of codec."""

    def __init__(self, pickled):
        self.pickled = pickled


class ResultRequest:
    """This rank's function returned that (text of codec), or failed with that text."""

    def __init__(self, rank, ok, value):
        self.rank = rank
        self.ok = ok
        self.value = value


class FunctionService(network.BasicService):
    """Hands out a function with arguments and takes the results."""

    NAME = "horovod.run"

    def __init__(self, func, args, kwargs):
        self._pickled = codec.dumps_base64((func, args, kwargs))
        self._results = {}
        self._lock = threading.Lock()
        self._key = secret.make_secret_key()
        super().__init__(self.NAME, self._key, None)

    def _handle(self, req, client_address):
        if isinstance(req, FunctionRequest):
            return Function(self._pickled)
        if isinstance(req, ResultRequest):
            with self._lock:
                self._results[req.rank] = (req.ok, req.value)
            return network.AckResponse()
        return super()._handle(req, client_address)

    def environment(self):
        """{variable: text} that the ranks need."""
        return {ADDRESSES: codec.dumps_base64((self.addresses(), self._key))}

    def results(self, num_proc):
        """({rank: result}, texts of what ranks raised)"""
        with self._lock:
            found = dict(self._results)
        failed = ["rank %d: %s" % (rank, found[rank][1]) for rank in sorted(found)
                  if not found[rank][0]]
        results = {}
        for rank, (ok, value) in found.items():
            if not ok or failed:
                continue
            try:
                results[rank] = codec.loads_base64(value)
            except Exception as error:
                failed.append("rank %d: its result cannot be unpickled here: %s" % (rank, error))
        return results, failed
