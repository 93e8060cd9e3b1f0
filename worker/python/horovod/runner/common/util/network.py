"""Small services that answer signed requests over TCP.

A message is a length and a pickled object, each behind its digest. The digests are checked
before memory is taken for the object and before it is unpickled, so only who has the key can
make a service do either. horovod.run() uses this, and programs that import it.
"""

import queue
import socket
import socketserver
import struct
import threading

try:
    import cloudpickle as _pickle
except ImportError:
    import pickle as _pickle

from horovod.runner.common.util import secret
from horovod.runner.util.network import _interfaces, find_port

_LENGTH = struct.Struct("<Q")
_BLOCK = 65536


class PingRequest:
    """Are you there?"""


class NoValidAddressesFound(Exception):
    """None of a service's addresses answered."""


class PingResponse:
    """I am here, and see you at source_address."""

    def __init__(self, service_name, source_address):
        self.service_name = service_name
        self.source_address = source_address


class AckResponse:
    """The request was understood."""


class AckStreamResponse:
    """The request was understood; a stream follows."""


class _Failed:
    """The request failed, with the exception to raise at the client."""

    def __init__(self, error):
        self.error = error


def _exactly(rfile, count):
    data = rfile.read(count)
    if len(data) != count:
        raise EOFError("the connection ended inside a message")
    return data


class Wire:
    """Objects on a connection.

    key  signs them; who reads must have the same
    """

    def __init__(self, key):
        self._key = key

    def write(self, obj, wfile):
        """Send an object."""
        self._write_signed(_pickle.dumps(obj), wfile)

    def stream(self, stream, wfile):
        """Send what comes from stream, in blocks, until it ends."""
        while True:
            block = stream.read(_BLOCK)
            if not block:
                break
            self._write_signed(block.encode() if isinstance(block, str) else block, wfile)
        self._write_signed(b"", wfile)

    def _write_signed(self, message, wfile):
        for part in (_LENGTH.pack(len(message)), message):
            wfile.write(secret.compute_digest(self._key, part))
            wfile.write(part)
        wfile.flush()

    def _read_part(self, rfile, count):
        digest = _exactly(rfile, secret.DIGEST_LENGTH)
        part = _exactly(rfile, count)
        if not secret.check_digest(self._key, part, digest):
            raise Exception("Security error: digest did not match the message.")
        return part

    def _read_signed(self, rfile):
        count = _LENGTH.unpack(self._read_part(rfile, _LENGTH.size))[0]
        return self._read_part(rfile, count)

    def read(self, rfile):
        """Receive an object. Exception when it is not signed with the key."""
        return _pickle.loads(self._read_signed(rfile))

    def read_stream(self, rfile, target):
        """Receive what stream() sends, into a text stream."""
        while True:
            data = self._read_signed(rfile)
            if not data:
                return
            target.write(data.decode("utf-8", "replace"))


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    request_queue_size = 128


def _portable(error):
    """_Failed with an exception that survives pickling."""
    try:
        _pickle.loads(_pickle.dumps(error))
    except Exception:
        error = RuntimeError("%s: %s" % (type(error).__name__, error))
    return _Failed(error)


class BasicService:
    """Answers PingRequest; subclasses override _handle() for more.

    What _handle() raises is raised at the client.

    nics  names of interfaces whose addresses are told to others; None: all
    """

    def __init__(self, service_name, key, nics):
        self._service_name = service_name
        self._wire = Wire(key)
        self._nics = nics
        self._server, _ = find_port(lambda address: _Server(address, self._make_handler()))
        self._port = self._server.socket.getsockname()[1]
        self._addresses = self._get_local_addresses()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True,
                                        kwargs={"poll_interval": 0.05})
        self._thread.start()

    def _make_handler(self):
        service = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                try:
                    request = service._wire.read(self.rfile)
                except Exception:
                    return  # not one of ours
                response, stream = service._answer(request, self.client_address), None
                if isinstance(response, tuple):
                    response, stream = response
                try:
                    service._wire.write(response, self.wfile)
                    if stream is not None:
                        service._wire.stream(stream, self.wfile)
                except OSError:
                    pass  # the client has gone

        return Handler

    def _handle(self, req, client_address):
        if isinstance(req, PingRequest):
            return PingResponse(self._service_name, client_address[0])
        raise NotImplementedError(req)

    def _answer(self, req, client_address):
        """What _handle() returns, or the exception that it raises, for the client."""
        try:
            response = self._handle(req, client_address)
            if response is None:
                raise RuntimeError("%s has no answer to a %s"
                                   % (self._service_name, type(req).__name__))
            return response
        except Exception as error:
            return _portable(error)

    def _get_local_addresses(self):
        return {name: [(address, self._port)] for name, address in _interfaces().items()
                if not self._nics or name in self._nics}

    def addresses(self):
        """{interface: [(IPv4 address, port)]}"""
        return self._addresses.copy()

    def shutdown(self):
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def get_port(self):
        return self._port


class BasicClient:
    """Talks to a BasicService at those of its addresses that answer.

    addresses      as of BasicService.addresses()
    match_intf     only addresses that see this host under the same interface's name
    probe_timeout  seconds to wait for answers
    attempts       how often a request is tried
    """

    def __init__(self, service_name, addresses, key, verbose, match_intf=False,
                 probe_timeout=20, attempts=3):
        self._verbose = verbose
        self._service_name = service_name
        self._wire = Wire(key)
        self._match_intf = match_intf
        self._probe_timeout = probe_timeout
        self._attempts = attempts
        self._addresses = self._probe(addresses)
        if not self._addresses:
            raise NoValidAddressesFound(
                "Horovod was unable to connect to %s on any of the following addresses: %s"
                % (service_name, addresses)
            )

    def _probe(self, addresses):
        found = queue.Queue()
        threads = []
        for name, places in addresses.items():
            for place in places:
                threads.append(threading.Thread(target=self._probe_one, daemon=True,
                                                args=(name, place, found)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._probe_timeout + 1)
        answered = {}
        while not found.empty():
            name, place = found.get()
            answered.setdefault(name, []).append(place)
        return answered

    def _probe_one(self, name, place, found):
        for _ in range(self._attempts):
            try:
                with socket.create_connection(place, self._probe_timeout) as connection:
                    answer = self._ask(connection, PingRequest(), None)
            except Exception:
                continue
            if answer.service_name != self._service_name:
                return
            if self._match_intf and _interfaces().get(name) != answer.source_address:
                return
            found.put((name, place))
            return

    def _ask(self, connection, request, stream):
        with connection.makefile("rb") as rfile, connection.makefile("wb") as wfile:
            self._wire.write(request, wfile)
            answer = self._wire.read(rfile)
            if isinstance(answer, _Failed):
                raise answer.error
            if isinstance(answer, AckStreamResponse) and stream is not None:
                self._wire.read_stream(rfile, stream)
            return answer

    def _send(self, req, stream=None):
        """The answer to a request."""
        place = next(iter(self._addresses.values()))[0]
        for attempt in range(self._attempts):
            try:
                connection = socket.create_connection(place)
            except OSError:
                if attempt == self._attempts - 1:
                    raise
                continue
            with connection:
                return self._ask(connection, req, stream)

    def addresses(self):
        """The addresses that answered."""
        return self._addresses
