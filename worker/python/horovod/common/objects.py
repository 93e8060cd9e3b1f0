"""Python objects on their way to other ranks, also those that cannot be pickled."""

import io
import pickle
import traceback

try:
    import cloudpickle as _pickle
except ImportError:  # plain functions and data work without it too
    _pickle = pickle


class Parcel:
    """An object as bytes; or why it cannot be pickled, which the other ranks must learn:
    they wait for it.

    data  never empty
    size  to tell the others before: of data; negative when that is the reason
    """

    def __init__(self, obj, rank):
        out = io.BytesIO()
        self._error = None
        try:
            _pickle.dump(obj, out)
            self.data = out.getvalue()
            self.size = len(self.data)
        except Exception as error:
            self._error = error
            reason = traceback.format_exception_only(type(error), error)[-1].strip()
            text = "rank %d cannot pickle its object: %s" % (rank, reason)
            self.data = text.encode("utf-8", "replace")
            self.size = -len(self.data)

    def check(self):
        """What unpack() raises on the other ranks, here with the cause."""
        if self._error is not None:
            raise ValueError(self.data.decode()) from self._error


def unpack(data, size):
    """The object of a Parcel's data and size; ValueError with the reason."""
    if size < 0:
        raise ValueError(data.decode())
    return pickle.loads(data)
