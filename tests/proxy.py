"""A network between a worker and PostgreSQL that can swallow what is sent, without an error."""

import os
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards to PostgreSQL until told to swallow the connections whose start names something."""

    def __init__(self) -> None:
        place = urlsplit(os.environ["DATABASE_URL"])
        self.target = (place.hostname, place.port)
        self.swallowing = ""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.listener.close()
        for each in self.sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                self.sockets += [near, far]
                names: list[bytes] = []
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, names), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, names: list[bytes]) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                # The first message of a client carries its application_name.
                names.append(data[:2000]) if len(names) < 6 else None
                hung = self.swallowing.encode()
                if not hung or not any(hung in name for name in names):
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
