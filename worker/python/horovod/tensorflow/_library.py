"""The op library: finding it, loading it, and saying what is missing.

HVD_TF_LIBRARY   path of libhvd_tf.so; else beside libhvd
HVD_TF_FALLBACK  1: do without it. Tensors then travel as numpy arrays through
                 tf.numpy_function: slower, no overlap with the backward pass, the same results
"""

import ctypes
import os

import tensorflow as tf

from horovod import _native
from horovod.common.util import env_bool, env_choice


def _candidates():
    chosen = os.environ.get("HVD_TF_LIBRARY")
    if chosen:
        return [chosen]
    name = "libhvd_tf.so"
    found = []
    if os.path.sep in _native.library_path:
        real = os.path.realpath(_native.library_path)
        for path in (_native.library_path, real):
            found.append(os.path.join(os.path.dirname(path), name))
    found.append(os.path.join(os.path.dirname(_native.__file__), "_dist", "lib", name))
    there = [path for path in found if os.path.exists(path)]
    return there or [name]


def _same_libhvd(library):
    """Has the op library the libhvd that this package talks to?"""
    def address(where):
        return ctypes.cast(where.hvd_rank, ctypes.c_void_p).value

    return address(library) == address(_native.lib)


_ADVICE = "; HVD_TF_FALLBACK=1 does without it, slowly"


def _load():
    path = _candidates()[0]
    try:
        ops = tf.load_op_library(path)
        library = ctypes.CDLL(path)
    except (tf.errors.OpError, OSError) as error:
        raise ImportError(
            "horovod.tensorflow: the op library %s cannot be loaded (HVD_TF_LIBRARY names "
            "another): %s%s" % (path, getattr(error, "message", error), _ADVICE)
        ) from None
    library.hvd_tf_missing.restype = ctypes.c_char_p
    library.hvd_tf_live.restype = ctypes.c_long
    library.hvd_tf_in_place.restype = ctypes.c_long
    library.hvd_tf_drop.restype = None
    missing = library.hvd_tf_missing().decode("utf-8", "replace")
    if missing or not hasattr(ops, "hvd_start"):
        raise ImportError(
            "horovod.tensorflow: TensorFlow %s does not offer what the op library %s needs: "
            "%s%s" % (tf.__version__, path, missing or "no op was registered", _ADVICE)
        )
    if not _same_libhvd(library):
        raise ImportError(
            "horovod.tensorflow: the op library %s uses another libhvd than %s; set "
            "HVD_LIBRARY and HVD_TF_LIBRARY to files of one build" % (path, _native.library_path)
        )
    return ops, library


env_choice("HVD_TF_GPU", ("host", "gpu"))  # the op library reads it
if env_bool("HVD_TF_FALLBACK"):
    ops, library = None, None
else:
    ops, library = _load()
