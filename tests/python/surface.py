"""Compares the package with surface.tsv: names, kinds, parameters and their defaults, values.

Also a program: python surface.py MODULE... prints the differences.
"""

import ast
import importlib
import inspect
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

_MADE = "made by DistributedOptimizer() only"
_ONE = "serves every Keras, which is therefore the first argument"
_OPS = "the gradients belong to the functions; there are no such ops"

#: (module, name): why the package differs
DIFFERS = {
    ("horovod._keras", "LocalGradientAggregationHelper"): "works without TensorFlow",
    ("horovod._keras", "LocalGradientAggregationHelperEager"): "works without TensorFlow",
    ("horovod._keras", "rank"): "works without TensorFlow",
    ("horovod._keras", "size_op"): "works without TensorFlow",
    ("horovod._keras", "allreduce"): _ONE,
    ("horovod._keras", "allgather"): _ONE,
    ("horovod._keras", "broadcast"): _ONE,
    ("horovod._keras", "reducescatter"): _ONE,
    ("horovod._keras", "load_model"): _ONE,
    ("horovod._keras.callbacks", "MetricAverageCallbackImpl._make_variable"): "none is needed",
    ("horovod.runner.run_task", "run_func_server_port"): "the environment says it",
    ("horovod.runner.task_fn", "index"): "only when it is the program",
    ("horovod.runner.task_fn", "num_hosts"): "only when it is the program",
    ("horovod.runner.task_fn", "driver_addresses"): "only when it is the program",
    ("horovod.runner.task_fn", "settings"): "only when it is the program",
    ("horovod.tensorflow", "BroadcastGlobalVariablesHook"): "its base has another name",
    ("horovod.tensorflow", "_DistributedOptimizer"): "its base has another name",
    ("horovod.tensorflow", "_DistributedAdasumOptimizer"): "its base has another name",
    ("horovod.tensorflow.data.compute_worker", "parsed_args"): "only when it is the program",
    ("horovod.tensorflow", "_DistributedAdasumOptimizer._apply_shared"): "needs no such step",
    ("horovod.tensorflow", "_DistributedAdasumOptimizer.apply_gradients"):
        "names its arguments as tf.compat.v1 does",
    ("horovod.tensorflow.mpi_ops", "_load_library"): "the op library is in _library",
    ("horovod.tensorflow.mpi_ops", "_allreduce_grad"): _OPS,
    ("horovod.tensorflow.mpi_ops", "_grouped_allreduce_grad"): _OPS,
    ("horovod.tensorflow.mpi_ops", "_grouped_allgather_grad"): _OPS,
    ("horovod.tensorflow.mpi_ops", "_grouped_reducescatter_grad"): _OPS,
    ("horovod.tensorflow.mpi_ops", "_allgather_grad"): _OPS,
    ("horovod.tensorflow.mpi_ops", "_broadcast_grad"): _OPS,
    ("horovod.tensorflow.mpi_ops", "_alltoall_grad"): _OPS,
    ("horovod.tensorflow.mpi_ops", "_reducescatter_grad"): _OPS,
    ("horovod.tensorflow.sync_batch_norm", "SyncBatchNormalization.call"): "Keras 3 reads it",
    ("horovod.torch.optimizer", "_DistributedOptimizer.__init__"): _MADE,
    ("horovod.torch.optimizer", "_DistributedAdasumOptimizer.__init__"): _MADE,
    ("horovod.torch.optimizer", "_DistributedAdasumOptimizer._allreduce_grad_async"): _MADE,
}


def rows():
    with open(os.path.join(HERE, "surface.tsv"), encoding="utf-8") as f:
        for line in f:
            if not line.startswith("#"):
                yield (line.rstrip("\n").split("\t") + [""] * 3)[:4]


def modules(*beginnings):
    """Modules of the table that are here and begin so; all of them without an argument."""
    names = sorted({row[0] for row in rows()})
    return [n for n in names if not beginnings or n.startswith(beginnings)]


def _find(module, name):
    found = module
    for part in name.split("."):
        field = getattr(found, "__dataclass_fields__", {}).get(part)
        found = getattr(found, part) if field is None else field.default
    return found


def _same_default(module, have, text):
    if have is inspect.Parameter.empty:
        return False
    try:
        return have == ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    try:
        wanted = eval(text, dict(vars(module)))
    except (NameError, AttributeError):
        return True  # a name of the module it came from
    return have is wanted or have == wanted


def _parameters(module, target, text):
    """What differs between a function and the parameters that the table names."""
    have = dict(inspect.signature(target).parameters)
    for itself in ("self", "cls"):
        have.pop(itself, None)
    kinds = {p.kind for p in have.values()}
    any_name = inspect.Parameter.VAR_KEYWORD in kinds
    any_place = inspect.Parameter.VAR_POSITIONAL in kinds
    wanted, by_name = [], False
    for part in filter(None, (p.strip() for p in _split(text))):
        name, equals, default = part.partition("=")
        if name in ("self", "cls"):
            continue
        if name.startswith("*"):
            by_name = by_name or not name.startswith("**")
            if name.startswith("**") and not any_name:
                yield "takes no %s" % name
            elif len(name) > 1 and not name.startswith("**") and not any_place:
                yield "takes no %s" % name
            continue
        if name not in have:
            if not (any_name or any_place):
                yield "no parameter %s" % name
            continue
        if not by_name:
            wanted.append(name)
        if equals and not _same_default(module, have[name].default, default):
            yield "default of %s is %r, not %s" % (name, have[name].default, default)
    order = [n for n in have if n in wanted]
    if order != wanted:
        yield "order of parameters: %s" % ", ".join(have)
    named = {p.strip().partition("=")[0] for p in _split(text)}
    for name, p in have.items():
        if (name not in named and p.default is inspect.Parameter.empty
                and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)):
            yield "needs a further argument %s" % name


def _split(text):
    """Parts between commas that are not inside brackets or quotes."""
    parts, depth, quote = [""], 0, None
    for char in text:
        if quote:
            quote = None if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _differences(module, kind, name, rest):
    try:
        found = _find(module, name)
    except AttributeError:
        return ["missing"]
    if kind == "class":
        if not inspect.isclass(found):
            return ["is no class"]
        bases = {c.__name__ for c in inspect.getmro(found)}
        return ["does not derive from %s" % b for b in filter(None, rest.split(", "))
                if b.split(".")[-1] not in bases]
    if kind == "attribute" and rest:
        wanted = ast.literal_eval(rest)
        return [] if found == wanted else ["is %r, not %s" % (found, rest)]
    if kind in ("function", "method", "staticmethod"):
        if not callable(found):
            return ["cannot be called"]
        try:
            return list(_parameters(module, found, rest))
        except ValueError:
            return []  # written in C
    if kind == "property" and not isinstance(found, property):
        return ["is no property"]
    return []


def _known(module, name):
    return (module, name) in DIFFERS


def stale(names):
    """Entries of DIFFERS for these modules that are in no row, or where nothing differs."""
    found = {(where, what) for where, what in DIFFERS if where in names}
    for where, kind, what, rest in rows():
        if (where, what) in found and _differences(importlib.import_module(where), kind, what,
                                                   rest):
            found.remove((where, what))
    return sorted(found)


def differences(name):
    """(number of names compared, texts) of a module."""
    module = importlib.import_module(name)
    count, texts = 0, []
    for where, kind, what, rest in rows():
        if where != name or _known(where, what):
            continue
        count += 1
        texts += ["%s.%s: %s" % (name, what, text)
                  for text in _differences(module, kind, what, rest)]
    return count, texts


if __name__ == "__main__":
    for module_name in sys.argv[1:] or modules():
        try:
            print("\n".join(differences(module_name)[1]))
        except ImportError as error:
            print("%s: %s" % (module_name, error))
