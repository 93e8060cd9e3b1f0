"""Reads and writes keys of a KVStoreServer or RendezvousServer.

Values are pickled, and the store asks nobody who he is. So they are signed, with the key in
the environment (_HOROVOD_SECRET_KEY) that starting a store makes, and a value whose signature
is not right for its place is not unpickled.
"""

import hmac
import http.client
import urllib.parse

try:
    import cloudpickle as _pickle
except ImportError:
    import pickle as _pickle

from horovod.runner.common.util import secret

_TIMEOUT_S = 60


def _signed(scope, key, value):
    """Digest of a pickled value at its place."""
    place = "/".join(urllib.parse.quote(str(part), safe="") for part in (scope, key))
    return secret.compute_digest(secret.job_key(), place.encode() + b"\n" + value)


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
    """The value of a key. RuntimeError when there is none, or not one of this job, or no server."""
    try:
        status, body = _request("GET", addr, port, scope, key)
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError("Read data from KVStore server failed: %s:%s: %s"
                           % (addr, port, error)) from error
    if status != 200:
        raise RuntimeError("Read data from KVStore server failed: %s:%s has no /%s/%s (%d)"
                           % (addr, port, scope, key, status))
    digest, value = body[:secret.DIGEST_LENGTH], body[secret.DIGEST_LENGTH:]
    if not hmac.compare_digest(digest, _signed(scope, key, value)):
        raise RuntimeError("Read data from KVStore server failed: %s:%s has a /%s/%s that is not "
                           "signed with this job's key: who writes and who reads need the same "
                           "%s in their environment"
                           % (addr, port, scope, key, secret.HOROVOD_SECRET_KEY))
    return _pickle.loads(value)


def put_data_into_kvstore(addr, port, scope, key, value):
    """Give a key its value. RuntimeError when that fails."""
    body = _pickle.dumps(value)
    try:
        status, _ = _request("PUT", addr, port, scope, key, _signed(scope, key, body) + body)
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError("Put data input KVStore server failed: %s:%s: %s"
                           % (addr, port, error)) from error
    if status != 200:
        raise RuntimeError("Put data input KVStore server failed: %s:%s refused /%s/%s (%d)"
                           % (addr, port, scope, key, status))
