"""Base class of data loaders, and a mixin that loads in a thread."""

import queue
import threading


class BaseDataLoader:
    """Something to iterate over in batches. Subclasses say how in _iterate()."""

    def __len__(self):
        raise NotImplementedError

    def _iterate(self):
        """Generator of batches of one epoch."""
        raise NotImplementedError

    def _process_batch(self, batch):
        """What the user of the loader gets for a batch."""
        return batch

    def __iter__(self):
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Loads ahead in a thread: class MyLoader(AsyncDataLoaderMixin, MyBaseLoader).

    async_loader_queue_size  batches to load ahead; 0: load when asked
    debug_data_loader        print how full the queue is
    """

    def __init__(self, async_loader_queue_size=64, debug_data_loader=False, *args, **kwargs):
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        super().__init__(*args, **kwargs)
        self._stop = threading.Event()
        self._queue = None
        self._thread = None

    def __del__(self):
        self.close_async_loader()

    def close_async_loader(self):
        """End the thread. Iterating again starts a new one."""
        thread = getattr(self, "_thread", None)
        if thread is None:
            return
        self._stop.set()
        while thread.is_alive():
            try:
                # a full queue holds the thread up
                self._queue.get_nowait()
            except queue.Empty:
                thread.join(0.01)
        self._thread = None

    def _load(self, out, stop):
        """Body of the thread: one epoch, then the end mark."""

        def put(item):
            while not stop.is_set():
                try:
                    out.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        try:
            for batch in self._iterate():
                if not put((batch, None, False)):
                    return
            put((None, None, True))
        except Exception as error:
            put((None, error, True))

    def __iter__(self):
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()
            return
        self.close_async_loader()
        self._stop = threading.Event()
        self._queue = queue.Queue(self.async_loader_queue_size)
        self._thread = threading.Thread(
            target=self._load, args=(self._queue, self._stop), daemon=True,
            name="hvd-data-loader",
        )
        self._thread.start()
        out = self._queue
        while True:
            batch, error, last = out.get()
            if error is not None:
                raise error
            if last:
                return
            if self.debug_data_loader:
                print("batches loaded ahead: %d" % out.qsize())
            yield self._process_batch(batch)
