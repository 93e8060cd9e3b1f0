"""A pipe between threads of one process."""

import threading
from collections import deque


class Pipe:
    """What one thread writes another one reads, in order; a writer waits for the reader."""

    def __init__(self):
        self._parts = deque()
        self._changed = threading.Condition()
        self._closed = False

    def write(self, buf):
        with self._changed:
            while self._parts and not self._closed:
                self._changed.wait()
            if self._closed:
                raise RuntimeError("the pipe is closed")
            if buf:
                self._parts.append(buf)
                self._changed.notify_all()

    def read(self, length=-1):
        """What has come, at most length; None when the pipe is closed and empty."""
        with self._changed:
            while not self._parts and not self._closed:
                self._changed.wait()
            if not self._parts:
                return None
            part = self._parts.popleft()
            if 0 < length < len(part):
                self._parts.appendleft(part[length:])
                part = part[:length]
            self._changed.notify_all()
            return part

    def flush(self):
        """Nothing is held back."""

    def close(self):
        with self._changed:
            self._closed = True
            self._changed.notify_all()
