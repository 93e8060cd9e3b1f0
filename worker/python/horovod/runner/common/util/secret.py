"""Keys and digests of messages between services."""

import hashlib
import hmac
import os

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
SECRET_LENGTH = 32  # bytes
DIGEST_LENGTH = 32  # bytes


def make_secret_key():
    """A new random key."""
    return os.urandom(SECRET_LENGTH)


def compute_digest(key, message):
    """HMAC-SHA256 of message."""
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key, message, digest):
    """Is digest that of message? Takes equally long either way."""
    return hmac.compare_digest(compute_digest(key, message), digest)
