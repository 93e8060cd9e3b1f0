"""State that survives the loss of a rank: committed copies in memory, and the retry loop."""

import copy
import functools
import queue
import threading
from typing import TYPE_CHECKING

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt


class WorkerNotificationManager:
    """Tells the registered states about changes of the set of hosts."""

    def __init__(self):
        self._lock = threading.Lock()
        self._listeners = set()

    def init(self, *args, **kwargs):
        """Nothing to start: notifications come through handle_hosts_updated()."""

    def register_listener(self, listener):
        with self._lock:
            self._listeners.add(listener)

    def remove_listener(self, listener):
        with self._lock:
            self._listeners.discard(listener)

    def handle_hosts_updated(self, timestamp, update_res):
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()


class State:
    """What training must not lose.

    bcast_object(obj)  rank 0's object on every rank
    get_rank()         this process's rank
    """

    def __init__(self, bcast_object, get_rank):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Call these after every reset, for example to adapt the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res):
        self._host_messages.put((timestamp, update_res))

    def commit(self):
        """Save, then raise HostsUpdatedInterrupt on all ranks when hosts changed."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self):
        """HostsUpdatedInterrupt on all ranks in the same step when hosts changed."""
        last, all_update = self._last_updated_timestamp, 0
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > last:
                last = timestamp
                all_update |= update
        previous, self._last_updated_timestamp, all_update = self._bcast_object(
            (self._last_updated_timestamp, last, all_update)
        )
        if self._last_updated_timestamp > previous:
            # 1: hosts were only removed, so nobody is new and the state is known to all
            raise HostsUpdatedInterrupt(all_update == 1)

    def save(self):
        """Keep a copy to restore()."""
        raise NotImplementedError

    def restore(self):
        """Go back to the copy of the last save()."""
        raise NotImplementedError

    def sync(self):
        """Give every rank rank 0's state."""
        raise NotImplementedError

    def reset(self):
        """Adapt to a changed set of ranks."""


class ObjectState(State):
    """State of plain Python values, which are attributes of this object."""

    if TYPE_CHECKING:  # the attributes have the names of **kwargs

        def __getattr__(self, name): ...

        def __setattr__(self, name, value): ...

    def __init__(self, bcast_object, get_rank, **kwargs):
        self._saved_state = dict(kwargs)
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        self._set_attrs()

    def _set_attrs(self):
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def save(self):
        self._saved_state = {
            name: copy.deepcopy(getattr(self, name)) for name in self._saved_state
        }

    def restore(self):
        self._set_attrs()

    def sync(self):
        if self._saved_state:
            self._saved_state = self._bcast_object(
                {name: getattr(self, name) for name in self._saved_state}
            )
            self._set_attrs()


def run_fn(func, reset):
    """func with the retry loop around it: its first argument is the State."""

    @functools.wraps(func)
    def wrapper(state, *args, **kwargs):
        notification_manager.init()
        notification_manager.register_listener(state)
        skip_sync = False
        try:
            while True:
                if not skip_sync:
                    state.sync()
                try:
                    return func(state, *args, **kwargs)
                except HorovodInternalError:
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    skip_sync = interrupt.skip_sync
                reset()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper
