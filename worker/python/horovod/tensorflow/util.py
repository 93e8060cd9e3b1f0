"""Small helpers."""

import contextlib

import tensorflow as tf

from horovod.common.util import _cache  # noqa: F401

#: for what tf.function may call: AutoGraph has nothing to convert there
do_not_convert = tf.autograph.experimental.do_not_convert


def _executing_eagerly():
    """Are operations run as they are called, here and now?"""
    return tf.executing_eagerly()


def _make_subgraph(f):
    return tf.function(f)


def _ref(variable):
    """A hashable stand-in for a variable, of TensorFlow or of Keras 3."""
    return variable.ref() if hasattr(variable, "ref") else _Ref(variable)


class _Ref:
    def __init__(self, variable):
        self._variable = variable

    def deref(self):
        return self._variable

    def __hash__(self):
        return id(self._variable)

    def __eq__(self, other):
        return isinstance(other, _Ref) and self._variable is other._variable


def vars_to_refs(vars):
    """Hashable stand-ins for variables, in the same nest of lists and tuples."""
    if isinstance(vars, list):
        return tuple(vars_to_refs(v) for v in vars)
    if isinstance(vars, tuple):
        return tuple(vars_to_refs(v) for v in vars)
    return _ref(vars)


def refs_to_vars(refs):
    """The variables of vars_to_refs()."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(r) for r in refs]
    return refs.deref()


def on_device(name):
    """tf.device(name), and where it is empty what is around: tf.device("") is the CPU eagerly, and
    tf.device(None) undoes one around it."""
    return tf.device(name) if name else contextlib.nullcontext()
