"""A deadline that several activities share."""

import time


class TimeoutException(Exception):
    """A deadline has passed."""

    def __init__(self, message):
        super().__init__(message)


class Timeout:
    """Passes timeout seconds after it was made; a pickled one has the rest of them left.

    message  text of the exception; {activity} and {timeout} are filled in
    """

    def __init__(self, timeout, message):
        self._timeout = timeout
        self._ends = time.monotonic() + timeout
        self._message = message

    def __getstate__(self):
        return dict(vars(self), _ends=self.remaining())  # clocks of hosts differ

    def __setstate__(self, state):
        vars(self).update(state, _ends=time.monotonic() + state["_ends"])

    def remaining(self):
        """Seconds left, not below 0."""
        return max(0.0, self._ends - time.monotonic())

    def timed_out(self):
        return self.remaining() == 0

    def check_time_out_for(self, activity):
        """TimeoutException when the deadline has passed."""
        if self.timed_out():
            raise TimeoutException(
                "%s Timeout after %s seconds." % (
                    self._message.format(activity=activity, timeout=self._timeout),
                    self._timeout,
                )
            )
