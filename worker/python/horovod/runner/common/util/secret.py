"""Keys and digests of messages between services."""

import hashlib
import hmac
import os
import threading

from horovod.runner.common.util import codec

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
SECRET_LENGTH = 32  # bytes
DIGEST_LENGTH = 32  # bytes

_making = threading.Lock()


def make_secret_key():
    """A new random key."""
    return os.urandom(SECRET_LENGTH)


def job_key():
    """The key in HOROVOD_SECRET_KEY. Made when there is none: what is then started has it."""
    with _making:
        if HOROVOD_SECRET_KEY not in os.environ:
            os.environ[HOROVOD_SECRET_KEY] = codec.dumps_base64(make_secret_key())
        return codec.loads_base64(os.environ[HOROVOD_SECRET_KEY])


def compute_digest(key, message):
    """HMAC-SHA256 of message."""
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key, message, digest):
    """Is digest that of message? Takes equally long either way."""
    return hmac.compare_digest(compute_digest(key, message), digest)
