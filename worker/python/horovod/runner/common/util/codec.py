"""Python objects as base64 text."""

import base64

try:
    import cloudpickle as _pickle
except ImportError:
    import pickle as _pickle


def loads_base64(encoded):
    """The object behind text of dumps_base64(). Only for text of a trusted source."""
    return _pickle.loads(base64.b64decode(encoded))


def dumps_base64(obj, to_ascii=True):
    """obj as base64: a str, or bytes with to_ascii=False."""
    encoded = base64.b64encode(_pickle.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded
