"""Data-parallel training for programs written for Horovod, on libhvd.

``import horovod.torch as hvd`` and go on as before; ``hvdrun`` starts the ranks.
"""

from horovod import _conflict
from horovod._version import __version__

_conflict.check()


#: reached as attributes of `import horovod` too, as far as their framework is there
_FRAMEWORKS = ("keras", "tensorflow", "torch")


def __getattr__(name):
    # horovod.run starts processes and is rarely needed in a rank: loaded on first use
    if name == "run":
        from horovod.runner import run

        return run
    if name in _FRAMEWORKS:
        import importlib

        try:
            return importlib.import_module("horovod." + name)
        except ImportError as error:
            raise AttributeError("module 'horovod' has no attribute %r: %s" % (name, error)
                                 ) from error
    raise AttributeError("module 'horovod' has no attribute %r" % name)


__all__ = ["run", "__version__"]
