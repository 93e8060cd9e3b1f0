"""Version of the package; that of the library is horovod.check's."""

__version__ = "0.1.0"
