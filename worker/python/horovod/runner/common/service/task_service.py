"""Runs a command for a client elsewhere: starts it, streams its output, tells how it ended."""

import os
import threading

from horovod.runner.common.util import network, safe_shell_exec
from horovod.runner.util.streams import Pipe
from horovod.runner.util.threads import in_thread

WAIT_FOR_COMMAND_MIN_DELAY = 0.1  # seconds


class RunCommandRequest:
    """Run this shell command.

    env  variables that it gets beside the service's own
    """

    def __init__(self, command, env, capture_stdout=False, capture_stderr=False,
                 prefix_output_with_timestamp=False):
        self.command = command
        self.env = env
        self.capture_stdout = capture_stdout
        self.capture_stderr = capture_stderr
        self.prefix_output_with_timestamp = prefix_output_with_timestamp


class StreamCommandOutputRequest:
    """Send what the command writes."""


class StreamCommandStdOutRequest(StreamCommandOutputRequest):
    """Send its standard output."""


class StreamCommandStdErrRequest(StreamCommandOutputRequest):
    """Send its standard error."""


class CommandOutputNotCaptured(Exception):
    """The command runs without capture_stdout or capture_stderr, or does not run yet."""


class AbortCommandRequest:
    """End the command and all that it started."""


class CommandExitCodeRequest:
    """Has the command ended, and how?"""


class CommandExitCodeResponse:
    """Whether the command has ended, and its exit status (None before)."""

    def __init__(self, terminated, exit_code):
        self.terminated = terminated
        self.exit_code = exit_code


class WaitForCommandExitCodeRequest:
    """Answer when the command has ended.

    delay  seconds between looks; the service needs none
    """

    def __init__(self, delay):
        self.delay = delay


class WaitForCommandExitCodeResponse:
    """The command has ended with this status."""

    def __init__(self, exit_code):
        self.exit_code = exit_code


class NotifyInitialRegistrationCompleteRequest:
    """All tasks of the job are known."""


class RegisterCodeResultRequest:
    """The function of this task returned that."""

    def __init__(self, result):
        self.result = result


class _Capture(Pipe):
    """A Pipe that drops what comes after close()."""

    def write(self, buf):
        try:
            super().write(buf)
        except RuntimeError:
            pass  # nobody reads any more


class BasicTaskService(network.BasicService):
    """Runs one command, once.

    index        number of the task; lines of the command's output begin with it
    command_env  environment of the command without the request's; None: this process's
    verbose      2: print the command
    """

    def __init__(self, name, index, key, nics, command_env=None, verbose=0):
        self._index = index
        self._command_env = command_env
        self._verbose = verbose
        self._changed = threading.Condition()
        self._registered = False
        self._started = False
        self._exit_code = None
        self._captured = {}
        self._abort = threading.Event()
        self._fn_result = None
        super().__init__(name, key, nics)

    # ---- the command

    def _run(self, req, env):
        status = 1
        try:
            status = safe_shell_exec.execute(
                req.command, env=env, stdout=self._captured.get(StreamCommandStdOutRequest),
                stderr=self._captured.get(StreamCommandStdErrRequest), index=self._index,
                events=[self._abort],
                prefix_output_with_timestamp=req.prefix_output_with_timestamp)
        finally:
            for stream in self._captured.values():
                stream.close()
            with self._changed:
                self._exit_code = status
                self._changed.notify_all()

    def _start(self, req):
        with self._changed:
            if self._started:
                raise RuntimeError("%s runs a command already" % self._service_name)
            self._started = True
            for capture, kind in ((req.capture_stdout, StreamCommandStdOutRequest),
                                  (req.capture_stderr, StreamCommandStdErrRequest)):
                if capture:
                    self._captured[kind] = _Capture()
            self._changed.notify_all()
        env = dict(os.environ if self._command_env is None else self._command_env)
        env.update({name: str(value) for name, value in (req.env or {}).items()})
        if self._verbose >= 2:
            print("Task service %s runs: %s" % (self._index, req.command))
        in_thread(self._run, args=(req, env))

    def _handle(self, req, client_address):
        if isinstance(req, RunCommandRequest):
            self._start(req)
        elif isinstance(req, StreamCommandOutputRequest):
            return self.stream_output(self._captured.get(type(req)))
        elif isinstance(req, AbortCommandRequest):
            self._abort.set()
        elif isinstance(req, CommandExitCodeRequest):
            code = self.command_exit_code()
            return CommandExitCodeResponse(code is not None, code)
        elif isinstance(req, WaitForCommandExitCodeRequest):
            self.wait_for_command_termination()
            return WaitForCommandExitCodeResponse(self.command_exit_code())
        elif isinstance(req, NotifyInitialRegistrationCompleteRequest):
            with self._changed:
                self._registered = True
                self._changed.notify_all()
        elif isinstance(req, RegisterCodeResultRequest):
            self._fn_result = req.result
        else:
            return super()._handle(req, client_address)
        return network.AckResponse()

    def stream_output(self, stream):
        """The answer with which a captured stream is sent."""
        if stream is None:
            raise CommandOutputNotCaptured("the command's output is not captured: run it with "
                                           "capture_stdout, capture_stderr")
        return network.AckStreamResponse(), stream

    # ---- for the owner

    def fn_result(self):
        """What register_code_result() brought."""
        return self._fn_result

    def _wait(self, ready, timeout, activity):
        with self._changed:
            while not ready():
                self._changed.wait(None if timeout is None else timeout.remaining())
                if not ready() and timeout is not None:
                    timeout.check_time_out_for(activity)

    def wait_for_initial_registration(self, timeout):
        """Return when the driver knows all tasks. TimeoutException when the Timeout passes."""
        self._wait(lambda: self._registered, timeout, "tasks to start")

    def wait_for_command_start(self, timeout=None):
        """Return when a command was asked for. TimeoutException when the Timeout passes."""
        self._wait(lambda: self._started, timeout, "command to run")

    def check_for_command_start(self, seconds):
        """Was a command asked for, within that time?"""
        with self._changed:
            return self._changed.wait_for(lambda: self._started, seconds)

    def wait_for_command_termination(self):
        """Return when the command has ended."""
        self._wait(lambda: self._exit_code is not None, None, None)

    def command_exit_code(self):
        """Exit status of the command; None while it runs."""
        with self._changed:
            return self._exit_code


class BasicTaskClient(network.BasicClient):
    """Talks to a BasicTaskService."""

    def __init__(self, service_name, task_addresses, key, verbose, match_intf=False,
                 attempts=3):
        super().__init__(service_name, task_addresses, key, verbose, match_intf=match_intf,
                         attempts=attempts)

    def run_command(self, command, env, capture_stdout=False, capture_stderr=False,
                    prefix_output_with_timestamp=False):
        """Start a shell command there; returns at once."""
        self._send(RunCommandRequest(command, env, capture_stdout, capture_stderr,
                                     prefix_output_with_timestamp))

    def stream_command_output(self, stdout=None, stderr=None):
        """Copy the captured output into these text streams as it comes.

        Returns the threads that do so, which end with the command; None for a stream that
        was not given.
        """
        return tuple(
            None if stream is None else in_thread(self._send, args=(request, stream))
            for request, stream in ((StreamCommandStdOutRequest(), stdout),
                                    (StreamCommandStdErrRequest(), stderr)))

    def abort_command(self):
        """End the command and all that it started."""
        self._send(AbortCommandRequest())

    def notify_initial_registration_complete(self):
        self._send(NotifyInitialRegistrationCompleteRequest())

    def command_terminated(self):
        """Has the command ended?"""
        return self._send(CommandExitCodeRequest()).terminated

    def command_result(self):
        """(has it ended, exit status or None)"""
        answer = self._send(CommandExitCodeRequest())
        return answer.terminated, answer.exit_code

    def register_code_result(self, result):
        """What this task's function returned."""
        self._send(RegisterCodeResultRequest(result))

    def wait_for_command_termination(self, delay=1.0):
        """Return when the command has ended."""
        self.wait_for_command_exit_code(delay)

    def wait_for_command_exit_code(self, delay=1.0):
        """Exit status of the command, once it has ended."""
        return self._send(WaitForCommandExitCodeRequest(delay)).exit_code
