"""Texts of elastic jobs."""

RESET_LIMIT_EXCEEDED_MESSAGE = (
    "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
)
