"""Networks that fail, without privileges: relays between members, and an address whose machine is silent."""

import socket
import threading
from urllib.parse import urlsplit

# The first bytes of a call tell whether it is an inquiry, which names no caller, and else the caller
# (crates/transport/src/handshake.rs).
HEAD_BYTES = 12
KIND, INQUIRY = slice(6, 8), b"\x01\x00"
FROM = slice(20, 28)
PIECE_BYTES = 64 << 10
# How long the system may take to open a connection on this machine, in seconds.
TO_CONNECT = 0.5


class Relays:
    """Forwards connections between three members of Synod, each of which the others reach at a port of this program.
    One of the members can be cut off from the others: its connections end, and new ones get no answer."""

    def __init__(self):
        self.lock, self.lonely = threading.Lock(), None
        # Connections of callers, with the numbers of the caller and of the member that is called.
        self.sessions, self.held = {}, []

    def between(self, listens):
        """Starts a relay for each URL at which a member listens; returns the URLs at which the others reach it."""
        return [self.start(of, urlsplit(url).port) for of, url in enumerate(listens)]

    def start(self, of, port):
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, args=(listener, of, port), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def cut_off(self, of):
        with self.lock:
            self.lonely = of
            for connection, members in self.sessions.items():
                if of in members:
                    shut(connection)

    def mend(self):
        with self.lock:
            self.lonely, held, self.held = None, self.held, []
        for connection in held:
            connection.close()

    def accept(self, listener, to, port):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.serve, args=(connection, to, port), daemon=True).start()

    def serve(self, connection, to, port):
        try:
            head = connection.recv(HEAD_BYTES, socket.MSG_WAITALL)
            caller = None
            if len(head) == HEAD_BYTES and head[KIND] != INQUIRY:
                head += connection.recv(FROM.stop - HEAD_BYTES, socket.MSG_WAITALL)
                # Members are numbered from 1 in the order of the initial cluster.
                caller = int.from_bytes(head[FROM], "little") - 1
        except OSError:
            head = b""
        with self.lock:
            if self.lonely is not None and self.lonely in (caller, to):
                self.held.append(connection)
                return
            self.sessions[connection] = (caller, to)
        if head:
            forward(connection, head, port)
        with self.lock:
            del self.sessions[connection]
        connection.close()


def forward(connection, head, port):
    """Carries both directions of a connection until it ends. `head` was read already."""
    try:
        target = socket.create_connection(("127.0.0.1", port), TO_CONNECT)
    except OSError:
        # The member does not run.
        return
    with target:
        target.settimeout(None)
        for end in (connection, target):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=carry, args=(target, connection), daemon=True)
        back.start()
        carry(connection, target, head)
        back.join()


def carry(source, sink, piece=b""):
    """Forwards until either end closes, then closes both."""
    try:
        while piece or (piece := source.recv(PIECE_BYTES)):
            sink.sendall(piece)
            piece = b""
    except OSError:
        pass
    shut(source)
    shut(sink)


def shut(end):
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has ended already.
        pass


class Silence:
    """An address whose machine does not answer, as behind a firewall that drops packets. Nobody takes connections off
    its queue, which is full, and then Linux drops the packets that would open another one."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(0)
        address = self.listener.getsockname()
        self.url = f"http://127.0.0.1:{address[1]}"
        self.waiting = []
        while len(self.waiting) < 8:
            try:
                self.waiting.append(socket.create_connection(address, TO_CONNECT))
            except TimeoutError:
                return
        raise RuntimeError("this system takes connections for a full queue, so no machine can be silent here")
