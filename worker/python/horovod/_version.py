"""The release of Horovod whose interface this package has; programs compare it with others.

The version of hvd itself is the wheel's and, with the library's, in horovod.check's report.
"""

__version__ = "0.28.1"
