"""What horovod.keras and horovod.tensorflow.keras share; neither needs TensorFlow here.

A distributed optimizer is an object of a class made at run time: a subclass of the user's
optimizer with the same name, so that saved models load without this package. Its hook is
where each Keras wants gradients of several replicas to be summed:

  Keras 3            apply()
  Keras 2            aggregate_gradients()
  Keras 2, legacy    _aggregate_gradients()

Gradients are therefore reduced before they are clipped. With loss scaling they are reduced
before LossScaleOptimizer looks for infinities, so all ranks skip the same steps.
"""

import copy

import numpy as np

from horovod import _native
from horovod._keras.backends import _Options, is_keras3, keras_backend, reducer
from horovod.common import host_ops
from horovod.common.arguments import checked_layers
from horovod.common.basics import HorovodBasics
from horovod.common.class_module import ClassModule
from horovod.common.process_sets import global_process_set

_basics = HorovodBasics(__file__)

Average = _basics.Average
Sum = _basics.Sum


class CallableList(list):
    """A list that may also be called for itself."""

    def __call__(self):
        return self


class _Sums:
    """Sums of the gradients of several backward passes, for eager backends."""

    def __init__(self, passes, average):
        self._passes, self._average = passes, average
        self._count, self._sums = 0, None

    def add(self, grads):
        """None, or the sums when it is time."""
        if self._sums is None:
            self._sums = [None if g is None else g.detach().clone() for g in grads]
        else:
            for total, gradient in zip(self._sums, grads):
                if gradient is not None:
                    total += gradient.detach()
        self._count += 1
        if self._count < self._passes:
            return None
        sums, self._sums, self._count = self._sums, None, 0
        if self._average:
            sums = [None if s is None else s / self._passes for s in sums]
        return sums


class _Settings:
    """What a distributed optimizer knows, kept out of what Keras tracks and saves."""

    def __init__(self, backend, reduce_fn, passes, average, sparse_as_dense, process_set,
                 scale_local_gradients):
        self.backend = backend
        self.reduce_fn = reduce_fn
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.local = []
        self.layers = []
        self.reduced = False  # by the LossScaleOptimizer around this one
        self.helper = None
        self.sums = None
        self.accumulated = 1  # backward passes that Keras itself averages
        self.factor = 1
        self.recipe = None  # arguments of _settings() that make the same again
        if passes > 1 and backend == "tensorflow":
            from horovod.tensorflow.gradient_aggregation_eager import (
                LocalGradientAggregationHelperEager,
            )

            self.helper = LocalGradientAggregationHelperEager(
                passes, self._reduce_unless_done, sparse_as_dense, average, process_set,
                scale_local_gradients,
            )
        elif passes > 1 and backend == "torch":
            self.sums = _Sums(passes, average)
        elif passes > 1:
            # a compiled step has no state of ours: every pass travels, Keras adds up
            self.accumulated = passes
            self.factor = 1 if average else passes

    def _is_local(self, variable):
        return any(variable is v for v in self.local) or any(
            variable is v for layer in self.layers for v in layer.trainable_weights
        )

    def _reduce_unless_done(self, grads, variables):
        return list(grads) if self.reduced else self.reduce(grads, variables)

    def _scale(self, gradient):
        if gradient is None or not self.scale_local_gradients:
            return gradient
        if self.backend == "tensorflow":
            from horovod.tensorflow.gradients import scale_local

            return scale_local(gradient, self.process_set)
        members = self.process_set.size() if self.process_set.process_set_id else _basics.size()
        return gradient / members

    def reduce(self, grads, variables):
        """Gradients reduced over all ranks, but for local variables'."""
        variables = list(variables)
        result = list(grads)
        others = [i for i, v in enumerate(variables) if not self._is_local(v)]
        reduced = self.reduce_fn([grads[i] for i in others], [variables[i] for i in others])
        for i in set(range(len(variables))).difference(others):
            result[i] = self._scale(grads[i])
        for i, gradient in zip(others, reduced):
            result[i] = gradient
        if self.factor != 1:
            result = [None if g is None else g * self.factor for g in result]
        return result

    def config(self, plain):
        """The configuration of an optimizer like the given one."""
        config = plain.get_config()
        if self.accumulated > 1:
            if config.get("gradient_accumulation_steps") not in (None, self.accumulated):
                raise ValueError(
                    "the optimizer has gradient_accumulation_steps; on the Keras backend %s it "
                    "cannot have backward_passes_per_step as well" % self.backend
                )
            config["gradient_accumulation_steps"] = self.accumulated
        return config


def _no_autograph(function):
    try:
        from horovod.tensorflow.util import do_not_convert
    except ImportError:
        return function
    return do_not_convert(function)


def _keras3_methods(base, settings):
    def build(optimizer, variables):
        # the branch of a condition cannot make variables
        if not optimizer.built:
            optimizer.build(variables)

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        if not grads:
            return None
        variables = (
            self._trainable_variables if trainable_variables is None
            else list(trainable_variables)
        )
        if settings.helper is not None:
            build(self, variables)
            grads = settings.helper.compute_gradients(grads, variables)
            settings.helper.apply_gradients(
                lambda: base.apply(self, grads, trainable_variables), self,
                list(zip(grads, variables)),
            )
            return None
        if settings.sums is not None:
            grads = settings.sums.add(grads)
            if grads is None:
                return None
        if not settings.reduced:
            grads = settings.reduce(grads, variables)
        return base.apply(self, grads, trainable_variables)

    return {"apply": apply}


def _keras2_methods(base, settings, legacy):
    def aggregate(self, grads_and_vars):
        pairs = list(grads_and_vars)
        if not pairs:
            return pairs
        variables = [v for _, v in pairs]
        return list(zip(settings.reduce([g for g, _ in pairs], variables), variables))

    def apply_gradients(self, grads_and_vars, name=None, **kwargs):
        pairs = [(g, v) for g, v in grads_and_vars]
        done_before = kwargs.get("skip_gradients_aggregation", False) or not kwargs.get(
            "experimental_aggregate_gradients", True
        )
        off = {"experimental_aggregate_gradients": False} if legacy else {
            "skip_gradients_aggregation": True
        }
        pairs = [(g, v) for g, v in pairs if g is not None]
        variables = [v for _, v in pairs]
        if not legacy:
            _build2(self, variables)
        before, settings.reduced = settings.reduced, done_before
        try:
            grads = settings.helper.compute_gradients([g for g, _ in pairs], variables)
        finally:
            settings.reduced = before
        pairs = list(zip(grads, variables))
        return settings.helper.apply_gradients(
            lambda: base.apply_gradients(self, pairs, name=name, **off), self, pairs
        )

    def get_gradients(self, loss, params):
        return settings.reduce(base.get_gradients(self, loss, params), params)

    methods = {"_aggregate_gradients" if legacy else "aggregate_gradients": aggregate}
    if settings.helper is not None:
        methods["apply_gradients"] = apply_gradients
    if legacy:
        methods["get_gradients"] = get_gradients
    return methods


def _build2(optimizer, variables):
    import tensorflow as tf

    with tf.init_scope():
        optimizer.build(variables)


def _register_local_var(self, var):
    """Gradients of this variable stay on this rank."""
    settings = self._hvd_settings
    settings.local.append(var)
    if settings.helper is not None:
        # what the helper reduces passes through settings.reduce
        settings.helper.scale_local_gradients = settings.scale_local_gradients


def _reduce_ex(self, protocol):
    """Pickled like a plain Keras optimizer: class and configuration, ours too, without state."""
    settings = self._hvd_settings
    if settings.local or settings.layers:
        raise TypeError("a distributed optimizer with local variables or layers cannot be copied "
                        "or pickled: the copy would not know them")
    return _rebuilt, (type(self).__mro__[1], self.get_config(), settings.recipe)


def _deepcopy(self, memo):
    function, arguments = _reduce_ex(self, 2)
    made = memo[id(self)] = function(*copy.deepcopy(arguments, memo))
    return made


def _rebuilt(base, config, recipe):
    """The counterpart of _reduce_ex()."""
    return distributed_class(base, _settings(*recipe)).from_config(config)


def class_wrapper(compression):
    """Function that gives the distributed class of an optimizer, else with the defaults."""

    def wrap_class(optimizer):
        settings = _settings(
            _backend_of(optimizer), "Distributed%s" % type(optimizer).__name__, "", "",
            compression, False, 1.0, Average, 1, False, None, global_process_set, True,
        )
        return distributed_class(type(optimizer), settings)

    return wrap_class


def keep_local(optimizer, local_layers):
    """A distributed optimizer that keeps the gradients of these layers on their rank."""
    inner = optimizer.inner_optimizer if _is_loss_scale(optimizer) else optimizer
    inner._hvd_settings.layers.extend(checked_layers(local_layers))
    return optimizer


def _is_loss_scale(optimizer):
    return hasattr(optimizer, "inner_optimizer")


def distributed_class(base, settings):
    """The subclass of an optimizer's class that reduces gradients."""
    if hasattr(base, "stateless_apply"):
        methods = _keras3_methods(base, settings)
        _teach_loss_scaling()
    elif hasattr(base, "aggregate_gradients"):
        methods = _keras2_methods(base, settings, legacy=False)
    elif hasattr(base, "_aggregate_gradients"):
        methods = _keras2_methods(base, settings, legacy=True)
    else:
        raise ValueError("%s is not a Keras optimizer" % base.__name__)
    if settings.backend == "tensorflow":
        methods = {name: _no_autograph(function) for name, function in methods.items()}
    methods.update(
        _hvd_settings=settings, register_local_var=_register_local_var, _HAS_AGGREGATE_GRAD=True,
        __reduce_ex__=_reduce_ex, __deepcopy__=_deepcopy,
        __module__=ClassModule(base.__module__, __name__), __doc__=base.__doc__,
        __qualname__=base.__qualname__,
    )
    return type(base.__name__, (base,), methods)


_taught = []


def _teach_loss_scaling():
    """Keras 3's LossScaleOptimizer calls the optimizer inside a condition on the gradients.

    Ranks whose gradients overflow would not take part. So a LossScaleOptimizer around a
    distributed optimizer, which compile() makes for mixed_float16, reduces first.
    """
    if _taught:
        return
    import keras

    cls = keras.optimizers.LossScaleOptimizer
    plain_apply, plain_stateless = cls.apply, cls.stateless_apply

    def inner_settings(self):
        settings = getattr(self.inner_optimizer, "_hvd_settings", None)
        return None if settings is None or settings.reduced else settings

    def reduced_first(plain, settings, grads, variables, call):
        grads = settings.reduce(list(grads), variables)
        settings.reduced = True
        try:
            return call(grads)
        finally:
            settings.reduced = False

    def apply(self, grads, trainable_variables=None):
        settings = inner_settings(self)
        if settings is None or len(grads) == 0:
            return plain_apply(self, grads, trainable_variables)
        variables = (
            self.inner_optimizer._trainable_variables if trainable_variables is None
            else list(trainable_variables)
        )
        return reduced_first(
            plain_apply, settings, grads, variables,
            lambda reduced: plain_apply(self, reduced, trainable_variables),
        )

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        settings = inner_settings(self)
        if settings is None:
            return plain_stateless(self, optimizer_variables, grads, trainable_variables)
        return reduced_first(
            plain_stateless, settings, grads, self.inner_optimizer._trainable_variables,
            lambda reduced: plain_stateless(self, optimizer_variables, reduced,
                                            trainable_variables),
        )

    cls.apply = _no_autograph(apply) if keras.backend.backend() == "tensorflow" else apply
    cls.stateless_apply = stateless_apply
    _taught.append(cls)


def _settings(backend, name, device_dense, device_sparse, compression, sparse_as_dense,
              gradient_predivide_factor, op, backward_passes_per_step,
              average_aggregated_gradients, groups, process_set, scale_local_gradients):
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be > 0")
    options = _Options(name, device_dense, device_sparse, compression, sparse_as_dense, op,
                       gradient_predivide_factor, groups, process_set)
    made = _Settings(backend, reducer(backend, options), backward_passes_per_step,
                     average_aggregated_gradients, sparse_as_dense, process_set,
                     scale_local_gradients)
    made.recipe = (backend, name, device_dense, device_sparse, compression, sparse_as_dense,
                   gradient_predivide_factor, op, backward_passes_per_step,
                   average_aggregated_gradients, groups, process_set, scale_local_gradients)
    return made


def _backend_of(optimizer):
    """Keras 2 optimizers are TensorFlow's, whatever the newest Keras is."""
    if not hasattr(type(optimizer), "stateless_apply"):
        return "tensorflow"
    import keras

    return keras.backend.backend()


def create_distributed_optimizer(keras, optimizer, name, device_dense, device_sparse, compression,
                                 sparse_as_dense, gradient_predivide_factor, op,
                                 backward_passes_per_step=1, average_aggregated_gradients=False,
                                 groups=None, process_set=global_process_set,
                                 scale_local_gradients=True):
    """A new optimizer like the given one, whose gradients are those of all ranks.

    The state of the given one, if it has any, goes along.
    """
    if hasattr(optimizer, "_hvd_settings"):
        return optimizer

    def wrap(plain):
        settings = _settings(
            _backend_of(plain), name or "Distributed%s" % type(plain).__name__, device_dense,
            device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, groups, process_set,
            scale_local_gradients,
        )
        made = distributed_class(type(plain), settings).from_config(settings.config(plain))
        _copy_state(plain, made)
        return made

    if _is_loss_scale(optimizer):
        return _around(optimizer, wrap(optimizer.inner_optimizer))
    return wrap(optimizer)


def _copy_state(plain, made):
    variables = getattr(plain, "_trainable_variables", None)
    if not getattr(plain, "built", False) or not variables:
        return
    made.build(variables)
    for to, source in zip(_state_of(made), _state_of(plain)):
        to.assign(source)


def _state_of(optimizer):
    """Its variables, without the sums of gradient_accumulation_steps."""
    variables = optimizer.variables
    sums = {id(v) for v in getattr(optimizer, "_accumulated_gradients", None) or ()}
    return [v for v in (variables() if callable(variables) else variables) if id(v) not in sums]


def _around(loss_scale, inner):
    """A LossScaleOptimizer like the given one around another optimizer."""
    if hasattr(type(loss_scale), "stateless_apply"):
        return type(loss_scale)(
            inner, initial_scale=loss_scale.initial_scale,
            dynamic_growth_steps=loss_scale.dynamic_growth_steps, name=loss_scale.name,
        )
    return type(loss_scale)(
        inner, dynamic=loss_scale.dynamic, initial_scale=loss_scale.initial_scale,
        dynamic_growth_steps=loss_scale.dynamic_growth_steps,
    )


def make_distributed(optimizer, wrap_class):
    """Turn an optimizer with all its state into a distributed one, in place."""
    inner = optimizer
    while _is_loss_scale(inner):
        inner = inner.inner_optimizer
    if not hasattr(inner, "_hvd_settings"):
        inner.__class__ = wrap_class(inner)
    return optimizer


# ---- collectives on values


def _eval(backend, op_or_result):
    """The value of a tensor: itself, and in a v1 graph what the session says."""
    if not hasattr(backend, "get_session"):
        return op_or_result
    from horovod.tensorflow.util import _executing_eagerly

    if _executing_eagerly():
        return op_or_result
    return backend.get_session().run(op_or_result)


def _host(kind, value, name, op=Sum, root=0, prescale=1.0, postscale=1.0):
    array = np.asarray(value)
    return host_ops.exchange(kind, [array], [name], op, 0, root, prescale, postscale)[0]


def _through_tensorflow(keras):
    return keras_backend(keras) == "tensorflow"


def broadcast_global_variables(backend, root_rank):
    """v1 graphs only; see horovod.tensorflow.broadcast_global_variables."""
    import horovod.tensorflow as hvd

    return _eval(backend, hvd.broadcast_global_variables(root_rank))


def allreduce(keras, value, name, average, prescale_factor, postscale_factor, op, compression):
    if _through_tensorflow(keras):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        return _eval(keras.backend, hvd.allreduce(
            tf.convert_to_tensor(value), name=name, average=average,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor, op=op,
            compression=compression,
        ))
    if op is None:
        op = Sum if average is False else Average
    return _host(_native.ALLREDUCE, value, name, op, 0, prescale_factor, postscale_factor)


def allgather(keras, value, name):
    if _through_tensorflow(keras):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        return _eval(keras.backend, hvd.allgather(tf.convert_to_tensor(value), name=name))
    return _host(_native.ALLGATHER, value, name)


def broadcast(keras, value, root_rank, name):
    if _through_tensorflow(keras):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        return _eval(keras.backend,
                     hvd.broadcast(tf.convert_to_tensor(value), root_rank, name=name))
    return _host(_native.BROADCAST, value, name, root=root_rank)


def reducescatter(keras, value, name, op):
    if _through_tensorflow(keras):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        return _eval(keras.backend,
                     hvd.reducescatter(tf.convert_to_tensor(value), name=name, op=op))
    return _host(_native.REDUCESCATTER, value, name, op)


def load_model(keras, wrap_class, filepath, custom_optimizers, custom_objects, legacy_opts=False):
    """keras.models.load_model with the optimizer made distributed, its state included."""
    objects = {cls.__name__: cls for cls in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects or None)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        make_distributed(optimizer, wrap_class)
    return model
