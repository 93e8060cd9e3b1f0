"""What tapes and optimizers share: reducing a list of gradients."""

import tensorflow as tf

from horovod import _native
from horovod.common.process_sets import global_process_set
from horovod.common.util import split_list
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Adasum, Average, Sum
from horovod.tensorflow.util import _ref


def is_sparse(gradient):
    return isinstance(gradient, tf.IndexedSlices)


def predivide(gradient_predivide_factor, op):
    """(prescale, postscale) of an average whose division is spread over both."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    return 1.0 / gradient_predivide_factor, float(gradient_predivide_factor)


def allreduce_slices(slices, names, op, process_set):
    """Reductions of sparse gradients: the rows of all ranks after one another."""
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround "
            "please pass sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Average, Sum):
        raise NotImplementedError("sparse tensors can be averaged and summed only")
    count = len(slices)
    attrs = mpi_ops._attrs(process_set=process_set)
    tensors = [tf.convert_to_tensor(t) for t in
               [s.values for s in slices] + [s.indices for s in slices]]
    tensor_names = [n and n + ".values" for n in names] + [n and n + ".indices" for n in names]
    gathered = mpi_ops._gather(_native.ALLGATHER, tensors, tensor_names, attrs)
    reduced = []
    for i, one in enumerate(slices):
        values = gathered[i]
        if op == Average:
            values = values / tf.cast(mpi_ops._members(process_set), values.dtype)
        reduced.append(tf.IndexedSlices(values, gathered[count + i], one.dense_shape))
    return reduced


def _group_indices(groups, positions, variables):
    """Places in the list of dense gradients that belong together."""
    if groups is None:
        return None
    count = len(positions)
    if isinstance(groups, int):
        return [part for part in split_list(list(range(count)), min(groups, count)) if part]
    place = {_ref(variables[p]): i for i, p in enumerate(positions)}
    found, left = [], set(range(count))
    for members in groups:
        indices = [place[_ref(v)] for v in members if _ref(v) in place]
        indices = [i for i in indices if i in left]
        left.difference_update(indices)
        if indices:
            found.append(indices)
    return found + [[i] for i in sorted(left)]


def reduce_gradients(name, grads, variables=None, device_dense="", device_sparse="",
                     compression=Compression.none, sparse_as_dense=False, op=Average,
                     gradient_predivide_factor=1.0, groups=None,
                     process_set=global_process_set):
    """The reductions of gradients, in order; None stays None.

    name       of all of them; the place in the list is added, so lists are equal on all ranks
    variables  theirs; needed when groups names variables
    """
    prescale, postscale = predivide(gradient_predivide_factor, op)
    reduced = list(grads)
    count = len(reduced)
    names = ["%s.%d.%d" % (name, count, i) for i in range(count)]
    if sparse_as_dense:
        reduced = [tf.convert_to_tensor(g) if is_sparse(g) else g for g in reduced]
    sparse = [i for i, g in enumerate(reduced) if is_sparse(g)]
    dense = [i for i, g in enumerate(reduced) if g is not None and not is_sparse(g)]
    tensors = [tf.convert_to_tensor(reduced[i]) for i in dense]
    compressed = [compression.compress(t) for t in tensors]
    results = mpi_ops._allreduce_many(
        [t for t, _ in compressed], [names[i] for i in dense], op, prescale, postscale,
        process_set, _group_indices(groups, dense, variables),
    )
    if sparse:
        slices = allreduce_slices([reduced[i] for i in sparse], [names[i] for i in sparse], op,
                                  process_set)
        for i, one in zip(sparse, slices):
            reduced[i] = one
    for i, result, (_, ctx) in zip(dense, results, compressed):
        reduced[i] = compression.decompress(result, ctx)
    return reduced


def scale_local(gradient, process_set):
    """A gradient that stays on its rank, on the scale of the averaged ones."""
    if gradient is None:
        return None
    members = mpi_ops._members(process_set)
    if is_sparse(gradient):
        return tf.IndexedSlices(
            gradient.values / tf.cast(members, gradient.values.dtype),
            gradient.indices,
            gradient.dense_shape,
        )
    return gradient / tf.cast(members, gradient.dtype)


def reduce_all_but(local_refs, grads, variables, reduce_fn, scale_local_gradients, process_set):
    """reduce_fn(gradients, variables) of all but local variables' gradients; in order."""
    result = list(grads)
    others = [i for i, v in enumerate(variables) if _ref(v) not in local_refs]
    if scale_local_gradients:
        for i, v in enumerate(variables):
            if _ref(v) in local_refs:
                result[i] = scale_local(result[i], process_set)
    reduced = reduce_fn([grads[i] for i in others], [variables[i] for i in others])
    for i, gradient in zip(others, reduced):
        result[i] = gradient
    return result
