"""Arguments that optimizers and tapes of TensorFlow and Keras share."""

import warnings

_GROUPS = "groups should be a non-negative integer or a list of list of tf.Variable."


def chosen_groups(num_groups, groups):
    """The argument groups, from it and its old name."""
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed",
            DeprecationWarning,
            stacklevel=4,
        )
        if groups is None:
            groups = num_groups
    if groups is None:
        return None
    if isinstance(groups, bool) or not isinstance(groups, (int, list, tuple)):
        raise ValueError(_GROUPS)
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(_GROUPS)
        return groups or None
    for members in groups:
        if not isinstance(members, (list, tuple)) or not all(
            hasattr(v, "assign") for v in members
        ):
            raise ValueError(_GROUPS)
    return [list(members) for members in groups]


def checked_layers(local_layers):
    """A list of layers from a layer, several, or None."""
    if local_layers is None:
        return []
    if not isinstance(local_layers, (list, tuple, set)):
        local_layers = [local_layers]
    for layer in local_layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return list(local_layers)
