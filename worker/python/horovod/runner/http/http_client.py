"""Reads and writes keys of a KVStoreServer or RendezvousServer.

Values are pickled, and the store asks nobody who he is: read only from a store whose
network you trust.
"""

import http.client
import urllib.parse

try:
    import cloudpickle as _pickle
except ImportError:
    import pickle as _pickle

_TIMEOUT_S = 60


def _request(method, addr, port, scope, key, body=None):
    """(status, body) of one request."""
    connection = http.client.HTTPConnection(addr, port, timeout=_TIMEOUT_S)
    try:
        path = "/".join(["", urllib.parse.quote(str(scope), safe=""),
                         urllib.parse.quote(str(key), safe="")])
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def read_data_from_kvstore(addr, port, scope, key):
    """The value of a key. RuntimeError when there is none or no server."""
    try:
        status, body = _request("GET", addr, port, scope, key)
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError("Read data from KVStore server failed: %s:%s: %s"
                           % (addr, port, error)) from error
    if status != 200:
        raise RuntimeError("Read data from KVStore server failed: %s:%s has no /%s/%s (%d)"
                           % (addr, port, scope, key, status))
    return _pickle.loads(body)


def put_data_into_kvstore(addr, port, scope, key, value):
    """Give a key its value. RuntimeError when that fails."""
    try:
        status, _ = _request("PUT", addr, port, scope, key, _pickle.dumps(value))
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError("Put data input KVStore server failed: %s:%s: %s"
                           % (addr, port, error)) from error
    if status != 200:
        raise RuntimeError("Put data input KVStore server failed: %s:%s refused /%s/%s (%d)"
                           % (addr, port, scope, key, status))
