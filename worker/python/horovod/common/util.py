"""Small helpers that programs written for Horovod import from here."""

import importlib
import importlib.util
import os
from collections.abc import Iterable
from contextlib import contextmanager
from functools import lru_cache, wraps

from horovod._absent import ABSENT

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

_PACKAGES = {"tensorflow": "tensorflow", "torch": "torch", "mxnet": "mxnet"}


def env_bool(name):
    """Is this variable set to yes? ValueError where it is neither yes nor no."""
    text = os.environ.get(name, "").lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("", "0", "false", "no", "off"):
        return False
    raise ValueError("%s: %r is not 0 or 1" % (name, text))


def env_choice(name, choices):
    """The value of this variable, "" where it is not set; ValueError: none of these."""
    text = os.environ.get(name, "")
    if text and text not in choices:
        raise ValueError("%s=%s: write %s" % (name, text, " or ".join(choices)))
    return text


def get_ext_suffix():
    """Suffix of shared objects; the package itself has none that is tied to a Python."""
    import sysconfig

    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path, *args):
    """The library behind every framework's module."""
    from horovod import _native

    return _native.library_path


def check_extension(ext_name, ext_env_var, pkg_path, *args):
    """ImportError when the library cannot be loaded. No framework needs an own build."""
    from horovod import _native  # noqa: F401


def extension_available(ext_base_name, verbose=False):
    """Can the module of this framework be used: is the framework installed?"""
    if ext_base_name in ABSENT:
        if verbose:
            print("horovod.%s is not supported yet" % ext_base_name)
        return False
    there = importlib.util.find_spec(_PACKAGES.get(ext_base_name, ext_base_name)) is not None
    if verbose and not there:
        print("%s is not installed" % ext_base_name)
    return there


def _check_extension_lambda(ext_base_name, fn, fn_desc, verbose):
    """fn(module) of an installed framework's module; None when it is not installed."""
    if not extension_available(ext_base_name, verbose):
        return None
    try:
        return fn(importlib.import_module("horovod." + ext_base_name))
    except ImportError as error:
        if verbose:
            print("%s: %s" % (fn_desc, error))
        return None


def _cache(f):
    """Remember the result for each tuple of arguments."""
    results = {}

    @wraps(f)
    def wrapper(*args, **kwargs):
        key = (args, frozenset(kwargs.items()))
        if key not in results:
            results[key] = f(*args, **kwargs)
        return results[key]

    return wrapper


def _basics():
    from horovod.common.basics import HorovodBasics

    return HorovodBasics(__file__)


@_cache
def gpu_available(ext_base_name, verbose=False):
    """Has this framework GPUs?"""
    if ext_base_name == "torch" and extension_available("torch", verbose):
        import torch

        return torch.cuda.is_available()
    if ext_base_name == "tensorflow" and extension_available("tensorflow", verbose):
        import tensorflow

        return bool(tensorflow.config.list_physical_devices("GPU"))
    return False


@_cache
def mpi_built(verbose=False):
    return _basics().mpi_built()


@_cache
def gloo_built(verbose=False):
    return _basics().gloo_built()


@_cache
def nccl_built(verbose=False):
    return _basics().nccl_built()


@_cache
def ddl_built(verbose=False):
    return _basics().ddl_built()


@_cache
def ccl_built(verbose=False):
    return _basics().ccl_built()


@contextmanager
def env(**kwargs):
    """These environment variables inside the block only."""
    backup = {key: os.environ.get(key) for key in kwargs}
    os.environ.update({key: str(value) for key, value in kwargs.items()})
    try:
        yield
    finally:
        for key, value in backup.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def get_average_backwards_compatibility_fun(reduce_ops):
    """Function that turns the old argument average and the new one op into an op."""

    def impl(op, average):
        import warnings

        if op is not None:
            if average is not None:
                raise ValueError(
                    "The op parameter supersedes average. Please provide only one of them."
                )
            return op
        if average is not None:
            warnings.warn(
                "Parameter `average` has been replaced with `op` and will be removed in v1.0",
                DeprecationWarning,
                stacklevel=3,
            )
            return reduce_ops.Average if average else reduce_ops.Sum
        return reduce_ops.Average

    return impl


def num_rank_is_power_2(num_rank):
    return num_rank != 0 and (num_rank & (num_rank - 1)) == 0


def split_list(l, n):
    """l in n parts whose lengths differ by at most one."""
    quotient, remainder = divmod(len(l), n)
    return [
        l[i * quotient + min(i, remainder) : (i + 1) * quotient + min(i + 1, remainder)]
        for i in range(n)
    ]


def check_installed_version(name, version, exception=None):
    """Any version of a framework will do, so there is nothing to find wrong."""
    if exception is not None:
        raise exception


def is_iterable(x):
    return isinstance(x, Iterable)


@lru_cache(maxsize=None)
def is_version_greater_equal_than(ver, target):
    """Compare version texts: '1.10.0' >= '1.9.0'. Local parts ('+cpu') do not count."""
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError("versions are texts, not %r and %r" % (ver, target))

    def numbers(text):
        parts = []
        for part in text.split("+")[0].split("."):
            digits = ""
            for char in part:
                if not char.isdigit():
                    break
                digits += char
            if not digits:
                break
            parts.append(int(digits))
        if not parts:
            raise ValueError("%r is no version" % text)
        return parts + [0] * (4 - len(parts))

    return numbers(ver) >= numbers(target)
