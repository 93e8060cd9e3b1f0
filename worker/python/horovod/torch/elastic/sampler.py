"""A sampler that, after a change of the job, goes on with what was not processed yet."""

import math
import random

import torch.utils.data

from horovod.torch.mpi_ops import is_initialized, rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Divides a data set among the ranks and remembers how far the epoch is.

    dataset  anything with a length
    shuffle  another order in every epoch
    seed     equal on all ranks

    Call record_batch() after every batch and set_epoch() at the end of an epoch.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch):
        """Begin an epoch: everything is to be processed again."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """Batch batch_idx of this epoch, of this size on every rank, is processed."""
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict):
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def state_dict(self):
        return dict(epoch=self.epoch, processed_num=self.processed_num)

    def reset(self):
        """Divide what is left among the ranks there are now."""
        self.num_replicas = size() if is_initialized() else 1
        self.rank = rank() if is_initialized() else 0
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        indices = list(self.remaining_indices)
        # equal counts on all ranks: begin again from the front
        while indices and len(indices) < self.total_size:
            indices += self.remaining_indices[: self.total_size - len(indices)]
        self.indices = indices[self.rank : self.total_size : self.num_replicas]
        return iter(self.indices)

    def __len__(self):
        return self.num_samples
