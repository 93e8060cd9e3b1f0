"""Tells training ranks where the dispatchers of a tf.data service are, and when to end."""

import threading

from horovod.runner.common.util import network, timeout as timeouts


class RegisterDispatcherRequest:
    """This dispatcher is at that address."""

    def __init__(self, dispatcher_id, dispatcher_address):
        self.dispatcher_id = dispatcher_id
        self.dispatcher_address = dispatcher_address


class WaitForDispatcherRegistrationRequest:
    """Answer when the dispatcher is there."""

    def __init__(self, dispatcher_id, timeout):
        self.dispatcher_id = dispatcher_id
        self.timeout = timeout


class WaitForDispatcherRegistrationResponse:
    """The dispatcher is there."""

    def __init__(self, dispatcher_address):
        self.dispatcher_address = dispatcher_address


class RegisterDispatcherWorkerRequest:
    """This worker serves that dispatcher."""

    def __init__(self, dispatcher_id, worker_id):
        self.dispatcher_id = dispatcher_id
        self.worker_id = worker_id


class WaitForDispatcherWorkerRegistrationRequest:
    """Answer when all workers of the dispatcher are there."""

    def __init__(self, dispatcher_id, timeout):
        self.dispatcher_id = dispatcher_id
        self.timeout = timeout


class ShutdownRequest:
    """All is done."""


class WaitForShutdownRequest:
    """Answer when all is done."""


class ComputeService(network.BasicService):
    """Knows the dispatchers and their workers.

    dispatchers             how many dispatchers there will be: ids 0 to dispatchers - 1
    workers_per_dispatcher  how many workers each will have
    """

    NAME = "Compute service"

    def __init__(self, dispatchers, workers_per_dispatcher, key, nics=None):
        if dispatchers <= 0:
            raise ValueError("The number of dispatchers must be larger than 0: %s" % dispatchers)
        if workers_per_dispatcher <= 0:
            raise ValueError("The number of workers per dispatcher must be larger than 0: %s"
                             % workers_per_dispatcher)
        self._workers_per_dispatcher = workers_per_dispatcher
        self._addresses_of = [None] * dispatchers
        self._workers_of = [set() for _ in range(dispatchers)]
        self._ended = False
        self._changed = threading.Condition()
        super().__init__(self.NAME, key, nics)

    def _check(self, dispatcher_id):
        if not 0 <= dispatcher_id < len(self._addresses_of):
            raise IndexError("Dispatcher id must be within [0..%d], but is %s"
                             % (len(self._addresses_of) - 1, dispatcher_id))

    def _wait(self, ready, timeout, what):
        with self._changed:
            if not self._changed.wait_for(lambda: ready() or self._ended, timeout):
                raise timeouts.TimeoutException(
                    "Timed out waiting for %s. Timeout after %s seconds." % (what, timeout))
            if not ready():
                raise RuntimeError("The compute service ended while %s was waited for." % what)

    def _register_dispatcher(self, req):
        with self._changed:
            known = self._addresses_of[req.dispatcher_id]
            if known not in (None, req.dispatcher_address):
                raise ValueError("Dispatcher with id %s has already been registered under "
                                 "different address %s: %s"
                                 % (req.dispatcher_id, known, req.dispatcher_address))
            self._addresses_of[req.dispatcher_id] = req.dispatcher_address
            self._changed.notify_all()

    def _handle(self, req, client_address):
        if hasattr(req, "dispatcher_id"):
            self._check(req.dispatcher_id)
        if isinstance(req, RegisterDispatcherRequest):
            self._register_dispatcher(req)
        elif isinstance(req, WaitForDispatcherRegistrationRequest):
            self._wait(lambda: self._addresses_of[req.dispatcher_id] is not None, req.timeout,
                       "dispatcher %s to register" % req.dispatcher_id)
            return WaitForDispatcherRegistrationResponse(self._addresses_of[req.dispatcher_id])
        elif isinstance(req, RegisterDispatcherWorkerRequest):
            with self._changed:
                self._workers_of[req.dispatcher_id].add(req.worker_id)
                self._changed.notify_all()
        elif isinstance(req, WaitForDispatcherWorkerRegistrationRequest):
            self._wait(lambda: (len(self._workers_of[req.dispatcher_id])
                                >= self._workers_per_dispatcher), req.timeout,
                       "workers of dispatcher %s to register" % req.dispatcher_id)
        elif isinstance(req, ShutdownRequest):
            self._end()
        elif isinstance(req, WaitForShutdownRequest):
            with self._changed:
                self._changed.wait_for(lambda: self._ended)
        else:
            return super()._handle(req, client_address)
        return network.AckResponse()

    def _end(self):
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def shutdown(self):
        """Let all who wait go, and answer no more."""
        self._end()
        super().shutdown()


class ComputeClient(network.BasicClient):
    """Talks to a ComputeService; what the service refuses is raised here."""

    def __init__(self, compute_addresses, key, verbose=1):
        super().__init__(ComputeService.NAME, compute_addresses, key, verbose)

    def register_dispatcher(self, dispatcher_id, dispatcher_address):
        self._send(RegisterDispatcherRequest(dispatcher_id, dispatcher_address))

    def wait_for_dispatcher_registration(self, dispatcher_id, timeout) -> str:
        """The dispatcher's address. TimeoutException after timeout seconds."""
        return self._send(
            WaitForDispatcherRegistrationRequest(dispatcher_id, timeout)).dispatcher_address

    def register_worker_for_dispatcher(self, dispatcher_id, worker_id):
        self._send(RegisterDispatcherWorkerRequest(dispatcher_id, worker_id))

    def wait_for_dispatcher_worker_registration(self, dispatcher_id, timeout):
        """Return when all of its workers are there. TimeoutException after timeout seconds."""
        self._send(WaitForDispatcherWorkerRegistrationRequest(dispatcher_id, timeout))

    def shutdown(self):
        """End the service's work: wait_for_shutdown() returns everywhere."""
        self._send(ShutdownRequest())

    def wait_for_shutdown(self):
        """Return when somebody has called shutdown()."""
        self._send(WaitForShutdownRequest())
