"""Where tasks say where they are, so that the driver and other tasks can reach them."""

import threading

from horovod.runner.common.util import network


class RegisterTaskRequest:
    """This task is at those addresses, on the host with that hash."""

    def __init__(self, index, task_addresses, host_hash):
        self.index = index
        self.task_addresses = task_addresses
        self.host_hash = host_hash


class RegisterTaskToTaskAddressesRequest:
    """The task with this index is reached by its neighbour at those addresses."""

    def __init__(self, index, task_addresses):
        self.index = index
        self.task_addresses = task_addresses


class AllTaskAddressesRequest:
    """Where is the task with this index?"""

    def __init__(self, index):
        self.index = index


class AllTaskAddressesResponse:
    """The addresses that the task registered."""

    def __init__(self, all_task_addresses):
        self.all_task_addresses = all_task_addresses


def _seen(addresses, source):
    """Those interfaces' addresses on which the host is source; all when none is."""
    found = {name: places for name, places in addresses.items()
             if any(place[0] == source for place in places)}
    return found or addresses


class BasicDriverService(network.BasicService):
    """Knows the tasks 0 to num_proc - 1 of a job."""

    def __init__(self, num_proc, name, key, nics):
        self._num_proc = num_proc
        self._all_task_addresses = {}
        self._task_addresses_for_driver = {}
        self._task_addresses_for_tasks = {}
        self._task_index_host_hash = {}
        self._changed = threading.Condition()
        super().__init__(name, key, nics)

    def _handle(self, req, client_address):
        if isinstance(req, RegisterTaskRequest):
            self._check(req.index)
            with self._changed:
                self._all_task_addresses[req.index] = req.task_addresses
                # what this host sees is certainly reached from here
                self._task_addresses_for_driver[req.index] = _seen(req.task_addresses,
                                                                   client_address[0])
                self._task_index_host_hash[req.index] = req.host_hash
                self._changed.notify_all()
            return network.AckResponse()
        if isinstance(req, RegisterTaskToTaskAddressesRequest):
            self.register_task_to_task_addresses(req.index, req.task_addresses)
            return network.AckResponse()
        if isinstance(req, AllTaskAddressesRequest):
            return AllTaskAddressesResponse(self.all_task_addresses(req.index))
        return super()._handle(req, client_address)

    def _check(self, index):
        if not 0 <= index < self._num_proc:
            raise ValueError("there is no task %s: the job has tasks 0 to %d"
                             % (index, self._num_proc - 1))

    def _of(self, registered, index):
        """What is registered of a task."""
        with self._changed:
            if index not in registered:
                raise KeyError("task %s has not registered" % index)
            return registered[index]

    def all_task_addresses(self, index):
        """What the task registered."""
        return self._of(self._all_task_addresses, index).copy()

    def task_addresses_for_driver(self, index):
        """Those at which the driver has seen the task."""
        return self._of(self._task_addresses_for_driver, index).copy()

    def task_addresses_for_tasks(self, index):
        """Those at which its neighbour reaches the task."""
        return self._of(self._task_addresses_for_tasks, index).copy()

    def register_task_to_task_addresses(self, index, task_addresses):
        self._check(index)
        with self._changed:
            self._task_addresses_for_tasks[index] = task_addresses
            self._changed.notify_all()

    def task_indices(self):
        """Indices of the registered tasks."""
        with self._changed:
            return list(self._all_task_addresses)

    def task_host_hash_indices(self):
        """{host hash: ascending indices of its tasks}"""
        with self._changed:
            found = {}
            for index in sorted(self._task_index_host_hash):
                found.setdefault(self._task_index_host_hash[index], []).append(index)
            return found

    def task_index_host_hash(self, index):
        """Hash of the task's host."""
        return self._of(self._task_index_host_hash, index)

    def _wait(self, registered, timeout, activity):
        with self._changed:
            while len(registered) < self._num_proc:
                self._changed.wait(timeout.remaining())
                if len(registered) < self._num_proc:
                    timeout.check_time_out_for(activity)

    def wait_for_initial_registration(self, timeout):
        """Return when every task has registered. TimeoutException when the Timeout passes."""
        self._wait(self._all_task_addresses, timeout, "tasks to start")

    def wait_for_task_to_task_address_updates(self, timeout):
        """Return when every task is known to be reached by its neighbour."""
        self._wait(self._task_addresses_for_tasks, timeout,
                   "tasks to update task-to-task addresses")


class BasicDriverClient(network.BasicClient):
    """Talks to a BasicDriverService."""

    def __init__(self, name, driver_addresses, key, verbose, match_intf=False):
        super().__init__(name, driver_addresses, key, verbose, match_intf=match_intf)

    def register_task(self, index, task_addresses, host_hash):
        self._send(RegisterTaskRequest(index, task_addresses, host_hash))

    def all_task_addresses(self, index):
        return self._send(AllTaskAddressesRequest(index)).all_task_addresses

    def register_task_to_task_addresses(self, index, task_addresses):
        self._send(RegisterTaskToTaskAddressesRequest(index, task_addresses))
