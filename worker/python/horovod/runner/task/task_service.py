"""The service on each host of a launch."""

import threading

from horovod.runner.common.service import task_service


class TaskToTaskAddressCheckFinishedSignal:
    """The task with this index has looked for its neighbour."""

    def __init__(self, index):
        self.index = index


class TaskToTaskAddressCheckFinishedSignalResponse:
    """The task with this index has heard it."""

    def __init__(self, index):
        self.index = index


class HorovodRunTaskService(task_service.BasicTaskService):
    """A BasicTaskService that also hears when the task before it has looked for it."""

    NAME_FORMAT = "horovod task service #%d"

    def __init__(self, index, key, nics):
        self._checked = threading.Event()
        super().__init__(self.NAME_FORMAT % index, index, key, nics)

    def _handle(self, req, client_address):
        if isinstance(req, TaskToTaskAddressCheckFinishedSignal):
            self._checked.set()
            return TaskToTaskAddressCheckFinishedSignalResponse(self._index)
        return super()._handle(req, client_address)

    def wait_for_task_to_task_address_check_finish_signal(self, timeout):
        """Return when that was heard. TimeoutException when the Timeout passes."""
        while not self._checked.wait(timeout.remaining()):
            timeout.check_time_out_for("task to task address check")


class HorovodRunTaskClient(task_service.BasicTaskClient):
    """Talks to a HorovodRunTaskService."""

    def __init__(self, index, task_addresses, key, verbose, match_intf=False, attempts=3):
        super().__init__(HorovodRunTaskService.NAME_FORMAT % index, task_addresses, key, verbose,
                         match_intf=match_intf, attempts=attempts)
        self._index = index

    def task_to_task_address_check_completed(self):
        """Tell the task; its index."""
        return self._send(TaskToTaskAddressCheckFinishedSignal(self._index)).index
