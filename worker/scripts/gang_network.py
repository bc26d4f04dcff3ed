"""Network of one script on several nodes: its sandboxes reach each other, and nothing else.

In each sandbox there is one interface, `gang0`, with an address in a network that exists nowhere
else. Packets sent there come out here: it is a TUN device whose other end this process holds,
outside. They travel over one TCP connection to the first node's relay, which passes them to their
destination node. A packet to any other address, or with a wrong sender address, is dropped. Both
ends of the connection must prove that they know the attempt's key; its content is not encrypted,
like that of recipes.

Every packet between two other nodes goes through the first one.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

INTERFACE = "gang0"
FIRST_ADDRESS = 0x0A4D0001  # 10.77.0.1; a sandbox has no other network that could clash with it
PREFIX = 16
MAX_NODES = 1 << 15
MTU = 65_520  # packets travel inside a TCP connection, so no wire limits them
GO = b"g"
ALL_HERE = b"\0\0"  # an empty packet
MEET_WITHIN_S = 100.0  # the scheduler gives a gang 120 s to start its ranks
HANDSHAKE_S = 3.0
RETRY_S = 0.2
NONCE = 16
HEADER = struct.Struct("!H")
IPV4_HEADER = 20
MAX_WAITING = 8 << 20  # bytes queued for one node; further packets are dropped, and TCP resends
PIECE = 1 << 20


@dataclass(frozen=True)
class GangMember:
    """Position of one node in the network of an attempt."""

    position: int
    nodes: int
    address: str
    """Address of the first node, in the network of the nodes."""
    port: int
    key: str

    @property
    def is_first(self) -> bool:
        return self.position == 0


def address_of(position: int) -> str:
    """Return the address inside the sandbox: `10.77.0.1` for the first node."""
    return socket.inet_ntoa(struct.pack("!I", FIRST_ADDRESS + position))


def addressee(packet: bytes | memoryview, *, nodes: int, sender: int | None) -> int | None:
    """Return the position that a packet is for; None if it may not be carried.

    `sender`: the position that its source address must have; None on the way in, where the first
    node has checked it.
    """
    if len(packet) < IPV4_HEADER or packet[0] >> 4 != 4:
        return None
    source, target = struct.unpack_from("!II", packet, 12)
    if sender is not None and source != FIRST_ADDRESS + sender:
        return None
    position = target - FIRST_ADDRESS
    return position if 0 <= position < nodes and target != source else None


def fork_relay(seat: GangMember, outside: socket.socket, prepare: Callable[[], None]) -> int:
    """Start the relay of a sandbox that has the other end of `outside`; return its pid.

    `prepare` is called first in the new process.
    """
    pid = os.fork()
    if pid == 0:
        _become(seat, outside, prepare)
    return pid


def _become(seat: GangMember, outside: socket.socket, prepare: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        prepare()
        os.closerange(3, outside.fileno())
        os.closerange(outside.fileno() + 1, 4096)
        carry(seat, outside)
        code = 0
    except OSError as error:
        say(f"The network between the nodes has failed: {error}")
    finally:
        os._exit(code)
    raise AssertionError  # not reached


def carry(seat: GangMember, outside: socket.socket) -> None:
    """Take the sandbox's interface, meet the other nodes, let the script begin, and relay
    packets."""
    _, given, _, _ = socket.recv_fds(outside, 1, 1)
    if not given:
        raise ConnectionResetError("the sandbox was not built")
    tun = given[0]
    os.set_blocking(tun, False)
    deadline = time.monotonic() + MEET_WITHIN_S
    links = admit_all(seat, deadline) if seat.is_first else {0: reach_first(seat, deadline)}
    for link in links.values():
        link.settimeout(max(0.1, deadline - time.monotonic()))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if seat.is_first:
            link.sendall(ALL_HERE)
        elif receive(link, len(ALL_HERE)) != ALL_HERE:
            raise OSError("the first node did not confirm that all nodes are here")
    outside.sendall(GO)
    say(f"This node is {address_of(seat.position)}, one of {seat.nodes}.")
    Relay(seat, tun, {position: PeerLink(each) for position, each in links.items()}).run()


# ------------------------------------------------------------------------------------- the meeting


def admit_all(seat: GangMember, deadline: float) -> dict[int, socket.socket]:
    """Accept, on the first node, a connection from each of the others."""
    admitted: dict[int, socket.socket] = {}
    with listen(seat.port) as server:
        while len(admitted) < seat.nodes - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            connection, _ = server.accept()
            connection.settimeout(HANDSHAKE_S)
            try:
                position = admit(connection, seat)
            except OSError:
                connection.close()  # an unknown peer, or one that has died meanwhile
                continue
            if position in admitted:
                admitted[position].close()  # the node has tried again
            admitted[position] = connection
    return admitted


def listen(port: int) -> socket.socket:
    """Listen at every address of this machine: the one that others know may be a translated one."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def reach_first(seat: GangMember, deadline: float) -> socket.socket:
    """Connect, on any other node, to the first one as soon as it listens."""
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no answer from {seat.address} port {seat.port}")
        with contextlib.suppress(OSError):
            connection = socket.create_connection((seat.address, seat.port), min(left_s, 5.0))
            try:
                connection.settimeout(HANDSHAKE_S)
                introduce(connection, seat)
            except OSError:
                connection.close()
            else:
                return connection
        time.sleep(min(RETRY_S, left_s))


def introduce(connection: socket.socket, seat: GangMember) -> None:
    """Prove to each other that both sides know the key, without sending it.

    Raises OSError if the other side does not know it.
    """
    hello = secrets.token_bytes(NONCE) + HEADER.pack(seat.position)
    connection.sendall(hello)
    nonce = receive(connection, NONCE)
    if not hmac.compare_digest(receive(connection, 32), proof(seat.key, b"first", hello, nonce)):
        raise OSError("the first node does not know the key")
    connection.sendall(proof(seat.key, b"other", hello, nonce))


def admit(connection: socket.socket, seat: GangMember) -> int:
    """Return the position of the connected node. Raises OSError if it does not know the key."""
    hello = receive(connection, NONCE + HEADER.size)
    nonce = secrets.token_bytes(NONCE)
    connection.sendall(nonce + proof(seat.key, b"first", hello, nonce))
    if not hmac.compare_digest(receive(connection, 32), proof(seat.key, b"other", hello, nonce)):
        raise OSError("the other side does not know the key")
    (position,) = HEADER.unpack_from(hello, NONCE)
    if not 0 < position < seat.nodes:
        raise OSError(f"position {position} is not a node of this attempt")
    return int(position)


def proof(key: str, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key.encode(), side + hello + nonce, hashlib.sha256)


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes. Raises OSError if the connection ends before."""
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionResetError("the connection has ended")
        received += piece
    return received


# ------------------------------------------------------------------------------------ the carrying


@dataclass
class PeerLink:
    """Connection to one other node."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    waiting: bytearray = field(default_factory=bytearray)
    """Bytes to be sent as soon as the connection accepts them."""

    def send(self, packet: bytes | memoryview) -> None:
        """Send a packet, queue it, or drop it if the queue is full.

        Raises OSError if the connection is gone.
        """
        if len(self.waiting) > MAX_WAITING:
            return
        header = HEADER.pack(len(packet))
        sent = 0
        if not self.waiting:
            with contextlib.suppress(BlockingIOError):
                sent = self.socket.sendmsg([header, packet])
        if sent < len(header):
            self.waiting += header[sent:]
            sent = len(header)
        self.waiting += packet[sent - len(header) :]

    def send_waiting(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self.waiting[: self.socket.send(self.waiting)]

    def packets(self) -> Iterator[bytes]:
        """Yield the packets that have arrived whole.

        Raises ConnectionResetError at the end of the connection.
        """
        with contextlib.suppress(BlockingIOError):
            piece = self.socket.recv(PIECE)
            if not piece:
                raise ConnectionResetError("the connection has ended")
            self.received += piece
        at = 0
        while len(self.received) - at >= HEADER.size:
            (size,) = HEADER.unpack_from(self.received, at)
            end = at + HEADER.size + size
            if end > len(self.received):
                break
            yield bytes(self.received[at + HEADER.size : end])
            at = end
        del self.received[:at]


class Relay:
    """Relay of packets until the sandbox is gone.

    Its interface stays when the other nodes have left: the ranks of this node use its address among
    themselves.
    """

    def __init__(self, seat: GangMember, tun: int, links: Mapping[int, PeerLink]) -> None:
        self.seat, self.tun, self.links = seat, tun, dict(links)
        self.selector = selectors.DefaultSelector()
        self.listens_inside = False
        for position, link in self.links.items():
            link.socket.setblocking(False)
            self.selector.register(link.socket, selectors.EVENT_READ, position)

    def run(self) -> None:
        """Relay until the sandbox is gone."""
        while True:
            self._look_where_it_goes_on()
            for key, events in self.selector.select():
                if key.data is None:
                    if not self._from_inside():
                        return
                elif key.data in self.links:
                    self._from_outside(key.data, events)

    def _look_where_it_goes_on(self) -> None:
        """Select the descriptors to wait for.

        Nothing more is read from the sandbox while a connection is full; from the others everything
        is always read, or two full connections would wait for each other.
        """
        for link in self.links.values():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.waiting else 0)
            if self.selector.get_key(link.socket).events != wanted:
                position = self.selector.get_key(link.socket).data
                self.selector.modify(link.socket, wanted, position)
        is_full = any(len(link.waiting) > MAX_WAITING // 2 for link in self.links.values())
        if is_full and self.listens_inside:
            self.selector.unregister(self.tun)
        elif not is_full and not self.listens_inside:
            self.selector.register(self.tun, selectors.EVENT_READ, None)
        self.listens_inside = not is_full

    def _from_inside(self) -> bool:
        """Relay packets from the sandbox; return False once it is gone."""
        for _ in range(64):  # then the other descriptors get their turn
            try:
                packet = os.read(self.tun, MTU + 1)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not packet:
                return False
            self._hand_on(packet, sender=self.seat.position)
        return True

    def _from_outside(self, position: int, events: int) -> None:
        link = self.links[position]
        try:
            if events & selectors.EVENT_WRITE:
                link.send_waiting()
            if events & selectors.EVENT_READ:
                for packet in link.packets():
                    self._hand_on(packet, sender=position if self.seat.is_first else None)
        except OSError:
            self._lose(position)

    def _hand_on(self, packet: bytes, *, sender: int | None) -> None:
        target = addressee(packet, nodes=self.seat.nodes, sender=sender)
        if target is None:
            return
        if target == self.seat.position:
            with contextlib.suppress(OSError):  # the interface is going down
                os.write(self.tun, packet)
            return
        way = target if self.seat.is_first else 0
        if sender is not None and way in self.links:
            try:
                self.links[way].send(packet)
            except OSError:
                self._lose(way)

    def _lose(self, position: int) -> None:
        """Drop a connection: its script has ended or its node is gone, and the platform will say
        which."""
        link = self.links.pop(position, None)
        if link is not None:
            self.selector.unregister(link.socket)
            link.socket.close()


def say(text: str) -> None:
    """Write a line to the launcher's log, which the job's owner can read."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
