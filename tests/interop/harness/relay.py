"""A one-shot TCP relay between one client connection and the broker.

It makes the events that a client library will not make on purpose: a connection
that breaks without DISCONNECT (`cut`), and a client that falls silent while its
connection stays open (`hold`). It also reports when the broker closed the
connection, for clients that do not tell. It accepts exactly one connection, so a
client that reconnects by itself cannot come back through it.
"""

import selectors
import socket
import threading


class Relay:
    def __init__(self, target_port):
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._wake_in, self._wake_out = socket.socketpair()
        self._held = False
        self._stop = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self):
        """Forward nothing more from the client to the broker."""
        self._held = True
        self._wake()

    def cut(self):
        """Close both sides without a word of MQTT."""
        self._stop = True
        self._wake()
        self._thread.join()

    def wait_end(self, deadline):
        """True once either peer has closed the connection."""
        return self._ended.wait(deadline)

    def _wake(self):
        try:
            self._wake_in.send(b"x")
        except OSError:
            pass

    def _run(self):
        client = broker = None
        selector = selectors.DefaultSelector()
        try:
            selector.register(self._wake_out, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while client is None and not self._stop:
                for key, _ in selector.select():
                    if key.fileobj is self._wake_out:
                        self._wake_out.recv(64)
                    else:
                        client, _ = self._listener.accept()
            selector.unregister(self._listener)
            self._listener.close()
            if client is None:
                return
            broker = socket.create_connection(("127.0.0.1", self._target_port))
            for sock in (client, broker):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(sock, selectors.EVENT_READ)
            client_is_read = True
            while not self._stop:
                if self._held and client_is_read:
                    selector.unregister(client)
                    client_is_read = False
                for key, _ in selector.select():
                    if key.fileobj is self._wake_out:
                        self._wake_out.recv(64)
                        continue
                    if key.fileobj is client and self._held:
                        continue
                    data = key.fileobj.recv(65536)
                    if not data:
                        return
                    (broker if key.fileobj is client else client).sendall(data)
        except OSError:
            pass
        finally:
            for sock in (client, broker, self._listener):
                if sock is not None:
                    sock.close()
            selector.close()
            self._wake_in.close()
            self._wake_out.close()
            self._ended.set()
