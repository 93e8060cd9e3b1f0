"""The store of an elastic job, in which workers ask for their rank."""

from horovod.runner.http.http_server import BAD_REQUEST, RendezvousHandler

GET_RANK_AND_SIZE = "rank_and_size"
PUT_WORKER_ADDRESSES = "worker_addresses"


def create_rendezvous_handler(driver):
    """Class of handlers for RendezvousServer.start(), for the workers of driver.

    GET /rank_and_size/host:slot answers when all workers are there, with the slot's ranks
    and sizes, all -1 when it has none. Workers' addresses are not taken from the network:
    register_worker_server() of the driver is for those.
    """

    class ElasticRendezvousHandler(RendezvousHandler):
        def _worker(self, key):
            """(host, slot) of a key; None after an answer that says that it is wrong."""
            host, _, slot = key.rpartition(":")
            if not host or not (slot.isascii() and slot.isdecimal()):
                self.send_status_code(BAD_REQUEST)
                return None
            return host, int(slot)

        def do_GET(self):
            place = self._place()
            if place is None:
                return
            if place[0] != GET_RANK_AND_SIZE:
                self._get(place)
                return
            worker = self._worker(place[1])
            if worker is not None:
                driver.record_ready(*worker)
                self._send_value(driver.get_slot_info(*worker).to_response_string().encode())

        def do_PUT(self):
            if self.path.startswith("/%s/" % PUT_WORKER_ADDRESSES):
                self.close_connection = True
                self.send_status_code(BAD_REQUEST)
                return
            super().do_PUT()

    return ElasticRendezvousHandler
