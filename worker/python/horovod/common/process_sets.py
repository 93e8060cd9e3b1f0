"""Process sets: subsets of the ranks with collectives of their own."""

from horovod.common.exceptions import NOT_INITIALIZED



class MPI:
    """Stands in for mpi4py.MPI in annotations; MPI itself is never loaded."""

    class Comm:
        pass


# the HorovodBasics of this process; set by _setup()
_basics = None
# its class, for annotations; set by horovod.common.basics, which needs this module first
HorovodBasics = None
# every set that has an id now
_known = {}


def _ranks_of(ranks_or_comm):
    """(ranks, communicator): one of them is None."""
    if hasattr(ranks_or_comm, "allgather"):
        return None, ranks_or_comm
    ranks = [int(rank) for rank in ranks_or_comm]
    return sorted(ranks), None


class ProcessSet:
    """Ranks that run collectives among themselves.

    ranks_or_comm  global ranks, or an mpi4py communicator that holds them

    Give it to hvd.init(process_sets=...) or hvd.add_process_set() on every rank, member
    or not; then to the process_set argument of collectives on the members.
    """

    process_set_id = None
    ranks = None
    mpi_comm = None

    def __init__(self, ranks_or_comm):
        self.ranks, self.mpi_comm = _ranks_of(ranks_or_comm)

    def _invalidate(self):
        self.process_set_id = None

    def size(self):
        """Number of members; None before the set is known to all ranks."""
        if self.process_set_id is None:
            return None
        return _basics._process_set_size(self.process_set_id)

    def rank(self):
        """This process's place among the members; None before the set is known."""
        if self.process_set_id is None:
            return None
        return _basics._process_set_rank(self.process_set_id)

    def included(self):
        """Is this process a member? None before the set is known."""
        if self.process_set_id is None:
            return None
        return _basics._process_set_included(self.process_set_id)

    def __str__(self):
        return "ProcessSet(process_set_id=%s, ranks=%s, mpi_comm=%s)" % (
            self.process_set_id,
            self.ranks,
            self.mpi_comm,
        )

    __repr__ = __str__


def _temp_process_set_object(process_set_id):
    """An object for a set that is known by id only."""
    found = ProcessSet([])
    found.process_set_id = process_set_id
    return found


#: all ranks; id 0
global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def _setup(basics):
    global _basics
    _basics = basics


def _resolve_ranks(process_set):
    """Global ranks of a set that may hold a communicator instead."""
    if process_set.ranks is None:
        process_set.ranks = sorted(process_set.mpi_comm.allgather(_basics.rank()))
    return process_set.ranks


def _enter(process_set, process_set_id):
    process_set.process_set_id = process_set_id
    _known[process_set_id] = process_set


def _init_process_sets(process_set_list):
    """Give the sets that hvd.init() created their ids and the global set its ranks."""
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(_basics.size()))
    ids = {tuple(ranks): i for i, ranks in _basics._get_process_set_ids_and_ranks().items()}
    for process_set in process_set_list:
        found = ids.get(tuple(_resolve_ranks(process_set)))
        if found is None:
            raise ValueError("%s was not registered by init()" % process_set)
        if process_set is not global_process_set:
            _enter(process_set, found)


def _forget_process_sets():
    """After shutdown no set but the global one has an id."""
    for process_set in _known.values():
        process_set._invalidate()
    _known.clear()


def add_process_set(process_set):
    """Make a new set known; every rank calls it with the same ranks.

    process_set  ProcessSet or global ranks
    Returns the ProcessSet, with its id. ValueError when such a set exists.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError("%s is registered already" % process_set)
    if not _basics.is_initialized():
        raise ValueError(NOT_INITIALIZED)
    _enter(process_set, _basics._add_process_set_impl(_resolve_ranks(process_set)))
    return process_set


def remove_process_set(process_set):
    """Forget a set; every rank calls it. False for the global and for unknown sets."""
    process_set_id = process_set.process_set_id
    if process_set_id is None or process_set_id == 0:
        return False
    if _basics._remove_process_set_impl(process_set_id) is None:
        return False
    _known.pop(process_set_id, None)
    process_set._invalidate()
    return True
