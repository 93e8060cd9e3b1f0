"""Parts of Horovod that this version does not have."""

import importlib.util

#: module below horovod: the package that it would need
ABSENT = {"mxnet": "mxnet", "spark": "pyspark", "ray": "ray"}


def refuse(module):
    """The ImportError of a module that is not there."""
    package = ABSENT[module]
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(
            "Extension horovod.%s has not been built: No module named '%s'. This version of "
            "hvd would not support it yet either." % (module, package), name=package)
    raise ImportError(
        "Extension horovod.%s has not been built: this version of hvd does not support %s yet."
        % (module, package), name="horovod." + module)
