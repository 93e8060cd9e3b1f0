"""How the workers of a rendezvous stand, and what follows when all have said so."""

import logging
import threading

from horovod.runner.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE

READY = "READY"
SUCCESS = "SUCCESS"
FAILURE = "FAILURE"


class WorkerStateRegistry:
    """Records one state of each worker, a host with a slot; acts when all are recorded.

    Any success, or nothing but failures, ends the job. Else hosts with a failure are
    blacklisted, and the job goes on, unless no host is left or reset_limit is exceeded.

    driver        its stop(), resume() and finished() are called, never under a lock
    host_manager  its blacklist() and is_blacklisted()
    reset_limit   most times that the job may go on; None: no limit
    """

    def __init__(self, driver, host_manager, reset_limit=None, verbose=False):
        self._driver = driver
        self._host_manager = host_manager
        self._reset_limit = reset_limit
        self._verbose = verbose
        self._changed = threading.Condition()
        self._states = {}
        self._size = 0
        self._rendezvous = 0
        self._done = False
        self._reset_count = 0

    def get_recorded_slots(self):
        """(host, slot) of those that have a state."""
        with self._changed:
            return set(self._states)

    def get(self, state):
        """(host, slot) of those in this state."""
        with self._changed:
            return {key for key, known in self._states.items() if known == state}

    def count(self, state):
        return len(self.get(state))

    def reset(self, size):
        """Begin a new rendezvous of size workers; those that are ready go on."""
        with self._changed:
            self._states.clear()
            self._size = size
            self._rendezvous += 1
            self._done = False
            self._changed.notify_all()

    def wake(self):
        """The driver has finished: nobody waits any longer."""
        with self._changed:
            self._changed.notify_all()

    def size(self):
        return self._size

    def last_rendezvous(self):
        """Number of the rendezvous, counted from 1."""
        with self._changed:
            return self._rendezvous

    def record_ready(self, host, slot):
        """The worker waits for a rank: returns when all workers have a state."""
        rendezvous = self._record(host, slot, READY)
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._rendezvous != rendezvous
                                   or self._driver.finished())
        return rendezvous

    def record_success(self, host, slot):
        return self._record(host, slot, SUCCESS)

    def record_failure(self, host, slot):
        return self._record(host, slot, FAILURE)

    def _record(self, host, slot, state):
        """The rendezvous in which this was said."""
        with self._changed:
            rendezvous = self._rendezvous
            if self._driver.finished() or self._done:
                return rendezvous
            self._states[(host, slot)] = state
            complete = len(self._states) >= self._size
            states = dict(self._states) if complete else None
        if states is not None:
            self._decide(states)
            with self._changed:
                if self._rendezvous == rendezvous:
                    self._done = True
                self._changed.notify_all()
        return rendezvous

    def _decide(self, states):
        failed = {host for (host, _), state in states.items() if state == FAILURE}
        if SUCCESS in states.values():
            logging.info("a worker has succeeded: the job ends")
            self._driver.stop()
            return
        if set(states.values()) == {FAILURE}:
            logging.error("all workers have failed: the job ends")
            self._driver.stop()
            return
        for host in failed:
            self._host_manager.blacklist(host)
        if all(self._host_manager.is_blacklisted(host) for host, _ in states):
            logging.error("all hosts of the job are blacklisted: the job ends")
            self._driver.stop()
            return
        if self._reset_limit is not None and self._reset_count >= self._reset_limit:
            self._driver.stop(error_message=RESET_LIMIT_EXCEEDED_MESSAGE.format(
                self._reset_limit))
            return
        self._reset_count += 1
        try:
            self._driver.resume()
        except Exception as error:
            logging.exception("the job cannot go on")
            self._driver.stop(error_message=str(error))
