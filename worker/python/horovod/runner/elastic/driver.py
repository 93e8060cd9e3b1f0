"""Who is in an elastic job: hosts come and go, slots have ranks, workers start and end.

The decisions only: hvdrun runs no elastic jobs yet. create_worker_fn of start() runs a
worker, in a thread of its own.
"""

import logging
import queue
import threading
import time

from horovod.runner.common.util import timeout as timeouts
from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, HostInfo, get_host_assignments
from horovod.runner.elastic.discovery import HostManager
from horovod.runner.elastic.registration import WorkerStateRegistry
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient
from horovod.runner.util.threads import in_thread

DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
ELASTIC_TIMEOUT_SECS = 600


class Results:
    """How a job ended: a text or None, and {"host[slot]": (exit status, time)}."""

    def __init__(self, error_message, worker_results):
        self.error_message = error_message
        self.worker_results = worker_results


class ResultsRecorder:
    """Collects what workers return."""

    def __init__(self):
        self._error_message = None
        self._worker_results = {}
        self._worker_threads = queue.Queue()

    def expect(self, worker_thread):
        """get_results() waits for this thread."""
        self._worker_threads.put(worker_thread)

    def set_error_message(self, error_message):
        self._error_message = error_message

    @property
    def error_message(self):
        """Why the job ends, as far as it is known now; does not wait."""
        return self._error_message

    def add_result(self, key, value):
        """The first result of a key stays."""
        self._worker_results.setdefault(key, value)

    def get_results(self):
        """Results, when all expected threads have ended."""
        while not self._worker_threads.empty():
            self._worker_threads.get().join()
        return Results(self._error_message, self._worker_results)


class ElasticDriver:
    """Gives ranks to the slots of the discovered hosts, and starts workers in new slots.

    rendezvous  its init(slots) is called with each new list of SlotInfos
    discovery   HostDiscovery that is asked each second
    min_num_proc, max_num_proc  limits of the number of ranks; no max_num_proc: all slots
    timeout     seconds to wait for enough slots; None: 600
    """

    def __init__(self, rendezvous, discovery, min_num_proc, max_num_proc, timeout=None,
                 reset_limit=None, cooldown_range=None, verbose=0):
        self._rendezvous = rendezvous
        self._min_num_proc = min_num_proc
        self._max_num_proc = max_num_proc
        self._timeout = timeout or ELASTIC_TIMEOUT_SECS
        self._host_manager = HostManager(discovery, cooldown_range)
        self._worker_registry = WorkerStateRegistry(self, self._host_manager, reset_limit,
                                                    verbose > 0)
        self._results = ResultsRecorder()
        self._changed = threading.Condition()
        self._assignments = {}
        self._world_size = 0
        self._running = set()
        self._clients = {}
        self._create_worker_fn = None
        self._shutdown = threading.Event()
        self._discovered = False
        in_thread(self._discover)

    # ---- hosts

    def _discover(self):
        while not self._shutdown.is_set():
            try:
                update = self._host_manager.update_available_hosts()
                self._discovered = True
            except Exception as error:
                if not self._discovered:
                    self.stop("host discovery failed: %s" % error)
                    return
                logging.warning("host discovery failed: %s", error)
                update = HostUpdateResult.no_update
            if update != HostUpdateResult.no_update:
                self._notify(update)
                with self._changed:
                    self._changed.notify_all()
            self._shutdown.wait(DISCOVER_HOSTS_FREQUENCY_SECS)

    def _notify(self, update):
        """Tell rank 0 of changed hosts, if they would change the ranks."""
        if not self._assignments:
            return
        try:
            planned, _ = self._plan(self._host_manager.current_hosts)
        except (RuntimeError, ValueError):
            planned = None  # too few slots
        client = self.get_worker_client(self.get_coordinator_info())
        if planned == self._assignments or client is None:
            return
        try:
            client.notify_hosts_updated(time.time(), update)
        except Exception as error:  # whatever its process says: hosts are discovered on
            logging.warning("rank 0 did not hear of changed hosts: %s", error)

    def wait_for_available_slots(self, min_num_proc, min_hosts=1):
        """The DiscoveredHosts, once they are that many. TimeoutException after the timeout."""
        deadline = timeouts.Timeout(self._timeout, "Timed out waiting for {activity}.")
        with self._changed:
            while True:
                found = self._host_manager.current_hosts
                if (found.count_available_slots() >= min_num_proc
                        and len(found.available_hosts) >= min_hosts):
                    return found
                if self._shutdown.is_set():
                    raise RuntimeError("Job has been shut down while %d slots were waited for: %s"
                                       % (min_num_proc, self._results.error_message))
                self._changed.wait(min(deadline.remaining(), DISCOVER_HOSTS_FREQUENCY_SECS))
                deadline.check_time_out_for("%d slots on %d hosts" % (min_num_proc, min_hosts))

    # ---- life of the job

    def start(self, num_proc, create_worker_fn):
        """Start workers when num_proc slots are there.

        create_worker_fn(slot_info, events) runs one and returns (exit status, time); it
        ends when one of the events is set.
        """
        self._create_worker_fn = create_worker_fn
        self._activate(num_proc)

    def resume(self):
        """Give ranks anew, to the slots that there are now."""
        self._activate(self._min_num_proc)

    def stop(self, error_message=None):
        """End the job; get_results() tells error_message."""
        if error_message is not None:
            self._results.set_error_message(error_message)
        self._shutdown.set()
        with self._changed:
            self._changed.notify_all()
        self._worker_registry.wake()

    def finished(self):
        """Has stop() been called?"""
        return self._shutdown.is_set()

    def get_results(self):
        """Results, when all workers have ended."""
        return self._results.get_results()

    def _plan(self, found):
        """({host: [SlotInfo]}, [SlotInfo]) on these hosts."""
        order = found.host_assignment_order
        if self._assignments and not any(host in self._assignments for host in order):
            raise RuntimeError(
                "No hosts from previous set remaining, unable to broadcast state.")
        slots = get_host_assignments([HostInfo(host, found.get_slots(host)) for host in order],
                                     self._min_num_proc, self._max_num_proc)
        planned = {}
        for slot in slots:
            planned.setdefault(slot.hostname, []).append(slot)
        return planned, slots

    def _activate(self, min_num_proc):
        found = self.wait_for_available_slots(min_num_proc)
        with self._changed:
            self._assignments, slots = self._plan(found)
            self._world_size = len(slots)
            new = [slot for slot in slots
                   if (slot.hostname, slot.local_rank) not in self._running]
            self._running |= {(slot.hostname, slot.local_rank) for slot in new}
        self._worker_registry.reset(len(slots))
        self._rendezvous.init(slots)
        for slot in new:
            self._results.expect(in_thread(self._run_worker, args=(slot,)))

    def _run_worker(self, slot):
        events = [self._shutdown, self._host_manager.get_host_event(slot.hostname)]
        try:
            status, when = self._create_worker_fn(slot, events)
        except Exception:
            logging.exception("worker %s[%d] cannot be run", slot.hostname, slot.local_rank)
            status, when = 1, time.time()
        place = slot.hostname, slot.local_rank
        with self._changed:
            self._running.discard(place)
        if not self.has_rank_assignment(*place):
            return  # it had to go
        record = (self._worker_registry.record_success if status == 0
                  else self._worker_registry.record_failure)
        rendezvous = record(*place)
        if self.finished() and self._worker_registry.last_rendezvous() == rendezvous:
            self._results.add_result("%s[%d]" % place, (status, when))

    # ---- workers

    def register_worker_server(self, host, slot, addresses, secret_key):
        """Where this worker hears of changed hosts."""
        client = WorkerNotificationClient(addresses, secret_key, 0)
        with self._changed:
            self._clients[(host, slot)] = client

    def get_worker_client(self, slot_info):
        """WorkerNotificationClient of a slot's worker; None when it did not register."""
        return self._clients.get((slot_info.hostname, slot_info.local_rank))

    def record_ready(self, host, slot):
        """This worker waits for a rank; returns when all do, or have ended."""
        self._worker_registry.record_ready(host, slot)

    # ---- ranks

    def world_size(self):
        return self._world_size

    def local_size(self, host):
        return len(self._assignments.get(host, ()))

    def get_slot_info(self, host, slot):
        """SlotInfo of a slot; INVALID_SLOT_INFO when it has no rank."""
        if not self.has_rank_assignment(host, slot):
            return INVALID_SLOT_INFO
        return self._assignments[host][slot]

    def get_coordinator_info(self):
        """SlotInfo of rank 0; None before start()."""
        return next((slot for slots in self._assignments.values() for slot in slots
                     if slot.rank == 0), None)

    def has_rank_assignment(self, host, slot):
        if self._host_manager.is_blacklisted(host):
            return False
        return self.local_size(host) > slot

    @property
    def host_assignments(self):
        """{host: [SlotInfo]}"""
        return self._assignments
