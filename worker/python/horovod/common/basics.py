"""Life cycle and facts of the job, the same in every framework's module."""

import atexit
import ctypes
import os

from horovod import _native
from horovod.common import process_sets as _sets
from horovod.common.exceptions import NOT_INITIALIZED, queue_error
from horovod.common.process_sets import MPI  # noqa: F401

_lib = _native.lib


def _fact(value):
    if value < 0:
        raise ValueError(NOT_INITIALIZED)
    return value


def _int32s(values):
    return (ctypes.c_int32 * max(len(values), 1))(*values)


def _planned_rank():
    for name in ("HVD_RANK", "HOROVOD_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


class HorovodBasics:
    """Every framework's module publishes the methods of one object of this class.

    The arguments of the constructor are Horovod's (where its extension lies); they are
    not needed.
    """

    Average = _native.AVERAGE
    Sum = _native.SUM
    Adasum = _native.ADASUM
    Min = _native.MIN
    Max = _native.MAX
    Product = _native.PRODUCT

    _exit_registered = False
    #: called after a successful init and after shutdown; bindings put functions here
    _after_init = []
    _after_shutdown = []

    def __init__(self, pkg_path=None, *args):
        self._path = pkg_path

    # ---- life cycle

    def init(self, comm=None, process_sets=None):
        """Join the job. Returns when every rank has called it; does nothing when joined.

        comm          None: all ranks; else the ranks of the launcher's plan that form this
                      job, or an mpi4py communicator that holds them
        process_sets  list of ProcessSet objects to create, or "dynamic"
        """
        if process_sets is None or isinstance(process_sets, str):
            if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
                raise ValueError(
                    "process_sets is a list of ProcessSet objects or 'dynamic', not %r"
                    % process_sets
                )
            wanted = []
        else:
            wanted = [s for s in process_sets if s is not _sets.global_process_set]
        if self.is_initialized():
            for process_set in wanted:
                if process_set.process_set_id is None:
                    _sets.add_process_set(process_set)
            return
        self._init(comm, wanted)

    def _init(self, comm, wanted):
        config = _native.Config()
        config.size = ctypes.sizeof(config)
        keep = []
        if comm is not None:
            ranks = comm.allgather(_planned_rank()) if hasattr(comm, "allgather") else comm
            ranks = [int(rank) for rank in ranks]
            if ranks:
                keep.append(_int32s(ranks))
                config.ranks = keep[-1]
                config.nranks = len(ranks)
        status = _lib.hvd_init(ctypes.addressof(config))
        del keep
        if status != _native.OK:
            raise ValueError("Horovod initialization failed: %s" % _native.last_error())
        if not HorovodBasics._exit_registered:
            # before the interpreter takes tensors apart that a collective may still write
            atexit.register(self.shutdown)
            HorovodBasics._exit_registered = True
        _sets._init_process_sets([])
        try:
            # not through hvd_config: two equal sets would then end the job, where here
            # every rank gets a ValueError
            for process_set in wanted:
                _sets.add_process_set(process_set)
        except ValueError:
            self.shutdown()
            raise
        for function in HorovodBasics._after_init:
            function()

    def shutdown(self):
        """Leave the job; operations that others still wait for fail there."""
        if _lib.hvd_get_state() == 0:
            return
        _lib.hvd_shutdown()
        _sets._forget_process_sets()
        for function in HorovodBasics._after_shutdown:
            function()

    def is_initialized(self):
        """Is this process part of a job?"""
        return _lib.hvd_rank() >= 0

    # ---- facts

    def size(self):
        """Number of ranks."""
        return _fact(_lib.hvd_size())

    def local_size(self):
        """Number of ranks on this host."""
        return _fact(_lib.hvd_local_size())

    def cross_size(self):
        """Number of hosts that have this local rank."""
        return _fact(_lib.hvd_cross_size())

    def rank(self):
        """This process among all: 0 to size() - 1."""
        return _fact(_lib.hvd_rank())

    def local_rank(self):
        """This process among those of its host."""
        return _fact(_lib.hvd_local_rank())

    def cross_rank(self):
        """This host among those that have this local rank."""
        return _fact(_lib.hvd_cross_rank())

    def is_homogeneous(self):
        """Has every host the same number of ranks?"""
        return _fact(_lib.hvd_is_homogeneous()) == 1

    # ---- timeline

    def start_timeline(self, file_path, mark_cycles=False):
        """Write a Chrome trace of all ranks to file_path from now on.

        Rank 0's path counts, so rank 0 alone has OSError when it cannot be written, and
        ValueError while a trace goes to another path. The same path again changes nothing.
        """
        path = os.fsencode(file_path)
        if b"\0" in path:
            raise ValueError("timeline %r: a path has no NUL" % file_path)
        status = _lib.hvd_timeline_start(path, 1 if mark_cycles else 0)
        if status == _native.EIO:
            raise OSError(_native.last_error())
        if status != _native.OK:
            raise queue_error(status)

    def stop_timeline(self):
        """Close the trace; does nothing when there is none."""
        status = _lib.hvd_timeline_stop()
        if status != _native.OK:
            raise queue_error(status)

    # ---- what the library can do

    def mpi_threads_supported(self):
        """False: MPI is not used."""
        self.size()
        return False

    def mpi_enabled(self):
        """False: MPI is not used."""
        return False

    def mpi_built(self):
        """False: MPI is not used."""
        return False

    def gloo_enabled(self):
        """Do the CPU collectives work without MPI, which programs ask by this name? Yes."""
        return True

    def gloo_built(self):
        """Do the CPU collectives work without MPI, which programs ask by this name? Yes."""
        return True

    def nccl_built(self):
        """The version of the NCCL that the process has loaded, as the number of its header
        (22809 is 2.28.9); before one is loaded the oldest that will do, 21800. Never 0: every
        build has the NCCL plane."""
        return int(_lib.hvd_feature(b"version:nccl"))

    def ddl_built(self):
        """False."""
        return False

    def ccl_built(self):
        """False."""
        return False

    def cuda_built(self):
        """Can tensors on NVIDIA GPUs be used?"""
        return bool(_lib.hvd_feature(b"cuda"))

    def rocm_built(self):
        """False."""
        return False

    # ---- process sets, for process_sets.py

    def _add_process_set_impl(self, ranks):
        out = ctypes.c_int32(-1)
        array = _int32s(ranks)
        status = _lib.hvd_pset_add(ctypes.addressof(array), len(ranks), ctypes.addressof(out))
        if status == _native.EDUPLICATE:
            raise ValueError("A process set with ranks %s already exists." % list(ranks))
        if status != _native.OK:
            raise queue_error(status)
        return out.value

    def _remove_process_set_impl(self, process_set_id):
        status = _lib.hvd_pset_remove(process_set_id)
        if status in (_native.EINVAL, _native.ESTATE):
            return None
        if status != _native.OK:
            raise queue_error(status)
        return process_set_id

    def _process_set_number(self, value):
        if value < 0:
            raise queue_error(value)
        return value

    def _process_set_rank(self, process_set_id):
        return self._process_set_number(_lib.hvd_pset_rank(process_set_id))

    def _process_set_size(self, process_set_id):
        return self._process_set_number(_lib.hvd_pset_size(process_set_id))

    def _process_set_included(self, process_set_id):
        return self._process_set_number(_lib.hvd_pset_included(process_set_id)) == 1

    def _get_process_set_ids_and_ranks(self):
        """{id: ascending global ranks} of every set."""
        count = self._process_set_number(_lib.hvd_pset_count())
        ids = _int32s([0] * count)
        count = min(count, _lib.hvd_pset_ids(ctypes.addressof(ids), count))
        found = {}
        for process_set_id in ids[:count]:
            size = self._process_set_size(process_set_id)
            ranks = _int32s([0] * size)
            _lib.hvd_pset_ranks(process_set_id, ctypes.addressof(ranks), size)
            found[process_set_id] = list(ranks[:size])
        return found

    def _comm_process_set_id(self, comm):
        """Id of the set that holds the ranks of an mpi4py communicator."""
        ranks = sorted(comm.allgather(self.rank()))
        for process_set_id, members in self._get_process_set_ids_and_ranks().items():
            if members == ranks:
                return process_set_id
        raise ValueError("no process set holds the ranks %s" % ranks)


_sets.HorovodBasics = HorovodBasics
