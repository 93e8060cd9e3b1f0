"""Settings of an elastic launch."""

from horovod.runner.common.util.settings import BaseSettings


class ElasticSettings(BaseSettings):
    """BaseSettings and how the job may grow and shrink.

    discovery       HostDiscovery that says which hosts there are
    min_num_proc, max_num_proc  limits of the number of ranks
    elastic_timeout seconds to wait for enough slots after a change
    reset_limit     most changes; None: no limit
    cooldown_range  (least, most) seconds that a failed host stays out
    """

    def __init__(self, discovery, min_num_proc, max_num_proc, elastic_timeout, reset_limit,
                 cooldown_range=None, **kwargs):
        super().__init__(elastic=True, **kwargs)
        self.discovery = discovery
        self.min_num_proc = min_num_proc
        self.max_num_proc = max_num_proc
        self.elastic_timeout = elastic_timeout
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range
