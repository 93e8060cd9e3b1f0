"""A key-value store over HTTP: GET, PUT and, for rendezvous, DELETE of /scope/key.

It asks nobody who he is, so it holds bytes only and never looks into them. hvd's ranks do
not use it; it is here for programs that import it.
"""

import collections
import logging
import socketserver
import threading
import urllib.parse
from http.server import HTTPServer, SimpleHTTPRequestHandler

from horovod.runner.common.util import secret
from horovod.runner.util.network import find_port
from horovod.runner.util.threads import in_thread

SINGLE_REQUEST_TIMEOUT = 3  # seconds
BAD_REQUEST = 400
TIMEOUT = 408
OK = 200
_NOT_FOUND = 404
_TOO_LARGE = 413
_VALUE_MAX = 1 << 30  # bytes


class KVStoreHandler(SimpleHTTPRequestHandler):
    """One connection to the store."""

    timeout = SINGLE_REQUEST_TIMEOUT

    def _place(self):
        """(scope, key) of the path; None after an answer that says that it is wrong."""
        parts = self.path.split("/")
        if len(parts) != 3 or parts[0] or not parts[1] or not parts[2]:
            logging.error("KVStore: invalid request path %r, wanted /scope/key", self.path)
            self.send_status_code(BAD_REQUEST)
            return None
        return urllib.parse.unquote(parts[1]), urllib.parse.unquote(parts[2])

    def do_GET(self):
        """Answer with the value, or with 404."""
        place = self._place()
        if place is not None:
            self._get(place)

    def _get(self, place):
        with self.server.cache_lock:
            value = self.server.cache.get(place[0], {}).get(place[1])
        if value is None:
            self.send_status_code(_NOT_FOUND)
            return
        self._send_value(value)

    def _send_value(self, value):
        self.send_response(OK)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def do_PUT(self):
        """Store the body; 408 when it does not come."""
        place = self._place()
        if place is None:
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            self.send_status_code(BAD_REQUEST)
            return
        if len(length) > 18 or int(length) > _VALUE_MAX:
            self.close_connection = True
            self.send_status_code(_TOO_LARGE)
            return
        try:
            value = self.rfile.read(int(length))
        except OSError:  # socket.timeout
            value = b""
        if len(value) != int(length):
            self.send_status_code(TIMEOUT)
            return
        with self.server.cache_lock:
            self.server.cache.setdefault(place[0], {})[place[1]] = value
        self.send_status_code(OK)

    def do_HEAD(self):
        """The store has no files."""
        self.send_status_code(BAD_REQUEST)

    def send_status_code(self, status_code):
        """An answer without a body."""
        self.send_response(status_code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format, *args):
        """Only a verbose server tells of each request."""
        if getattr(self.server, "verbose", 0):
            logging.info(format, *args)


class RendezvousHandler(KVStoreHandler):
    """A store in which ranks also say that they have finished with a key."""

    def do_DELETE(self):
        """A rank, the key, is done with a scope; the scope goes when all are."""
        place = self._place()
        if place is None:
            return
        with self.server.finished_lock:
            self.server.finished[place[0]].add(place[1])
            if (len(self.server.finished[place[0]])
                    >= self.server.scope_size.get(place[0], float("inf"))):
                with self.server.cache_lock:
                    self.server.cache.pop(place[0], None)
        self.send_status_code(OK)


class _Store(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True

    def __init__(self, addr, handler, verbose):
        self.verbose = verbose
        self.cache = {}
        self.cache_lock = threading.Lock()
        super().__init__(addr, handler)


class RendezvousHTTPServer(_Store, object):
    """Server of a RendezvousHandler.

    verbose  0: quiet
    """

    def __init__(self, addr, handler, verbose):
        self.finished = collections.defaultdict(set)
        self.finished_lock = threading.Lock()
        self.scope_size = {}
        super().__init__(addr, handler, verbose)

    def init(self, host_alloc_plan):
        """Begin anew with these SlotInfos: all together, each host, each local rank."""
        with self.finished_lock:
            self.finished.clear()
            self.scope_size = {}
            for slot in host_alloc_plan:
                self.scope_size["global"] = slot.size
                self.scope_size["local_" + slot.hostname] = slot.local_size
                self.scope_size["cross_%d" % slot.local_rank] = slot.cross_size
        with self.cache_lock:
            self.cache.clear()

    def should_continue(self):
        """Has some scope not been finished by all its ranks?"""
        with self.finished_lock:
            return any(len(self.finished.get(scope, ())) < size
                       for scope, size in self.scope_size.items())


class KVStoreHTTPServer(_Store, object):
    """Server of a KVStoreHandler.

    verbose  0: quiet
    """


class _InThread:
    """A store in a thread of its own, on a free port.

    verbose  0: quiet
    """

    def __init__(self, verbose=0):
        self._verbose = verbose
        self._httpd = None
        self._thread = None

    def _start(self, store, handler):
        secret.job_key()  # for http_client, here and in what is started from here
        self._httpd, port = find_port(lambda addr: store(addr, handler, self._verbose))
        self._thread = in_thread(self._httpd.serve_forever, args=(0.05,))
        return port

    def _stop(self):
        if self._httpd is not None:
            self._httpd.shutdown()
            self._httpd.server_close()
            self._thread.join()
            self._httpd = None


class RendezvousServer(_InThread):
    """A RendezvousHTTPServer in a thread of its own, on a free port."""

    def start(self, handler_cls=RendezvousHandler):
        """The port on which it answers from now on."""
        return self._start(RendezvousHTTPServer, handler_cls)

    def init(self, host_alloc_plan):
        """Begin anew with these SlotInfos."""
        self._httpd.init(host_alloc_plan)

    def stop(self):
        """Answer no more."""
        self._stop()


class KVStoreServer(_InThread):
    """A KVStoreHTTPServer in a thread of its own, on a free port."""

    def start_server(self):
        """The port on which it answers from now on."""
        return self._start(KVStoreHTTPServer, KVStoreHandler)

    def shutdown_server(self):
        """Answer no more."""
        self._stop()
