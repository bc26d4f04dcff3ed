"""Packets between the sandboxes of one attempt: whose are carried, and to whom."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from worker.scripts.gang_network import (
    GangMember,
    PeerLink,
    Relay,
    address_of,
    addressee,
    admit,
    introduce,
)

SEAT = GangMember(position=0, nodes=3, address="127.0.0.1", port=1, key="k" * 64)


def packet(source: str, target: str, content: bytes = b"hello", *, version: int = 4) -> bytes:
    head = bytes([version << 4 | 5]) + bytes(11)
    return head + socket.inet_aton(source) + socket.inet_aton(target) + content


def test_only_packets_from_and_to_nodes_of_the_attempt_are_carried() -> None:
    first, second, third = (address_of(position) for position in range(3))
    assert (first, third) == ("10.77.0.1", "10.77.0.3")
    assert addressee(packet(first, third), nodes=3, sender=0) == 2
    assert addressee(packet(second, first), nodes=3, sender=1) == 0
    assert addressee(packet(second, first), nodes=3, sender=None) == 0
    for wrong in (
        packet(second, third),  # from the first node, in the name of the second
        packet(first, "10.77.0.4"),  # there is no fourth
        packet(first, "10.77.0.0"),
        packet(first, "255.255.255.255"),
        packet(first, "169.254.169.254"),
        packet(first, "127.0.0.1"),
        packet(first, first),
        packet(first, third, version=6),
        packet(first, third)[:19],
        b"",
    ):
        assert addressee(wrong, nodes=3, sender=0) is None


def meeting(theirs: GangMember, ours: GangMember = SEAT) -> tuple[int | OSError, OSError | None]:
    """What the first node and another one come to, when they meet."""
    here, there = socket.socketpair()
    told: list[OSError | None] = []

    def other() -> None:
        with there:
            try:
                introduce(there, theirs)
                told.append(None)
            except OSError as error:
                told.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    with here:
        here.settimeout(5)
        there.settimeout(5)
        try:
            found: int | OSError = admit(here, ours)
        except OSError as error:
            found = error
    thread.join()
    return found, told[0]


def test_whoever_knows_the_key_is_admitted_and_nobody_else() -> None:
    assert meeting(replace(SEAT, position=2)) == (2, None)
    for stranger in (replace(SEAT, position=1, key="x" * 64), replace(SEAT, position=1, key="")):
        found, told = meeting(stranger)
        assert isinstance(found, OSError)
        assert "does not know the key" in str(told)
    for position in (0, 3, 60_000):
        found, _ = meeting(replace(SEAT, position=position))
        assert isinstance(found, OSError)


@pytest.fixture
def insides() -> Iterator[list[socket.socket]]:
    """Three nodes that have met: the inner side of each."""
    with ExitStack() as stack:
        far: list[socket.socket] = []
        links: list[dict[int, PeerLink]] = [{}, {}, {}]
        for position in (1, 2):
            one, other = socket.socketpair()
            links[0][position], links[position][0] = PeerLink(one), PeerLink(other)
        threads = []
        for position in range(3):
            tun, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(inside)
            inside.settimeout(10)
            tun.setblocking(False)
            far.append(inside)
            relay = Relay(replace(SEAT, position=position), tun.detach(), links[position])
            threads.append(threading.Thread(target=run, args=[relay]))
            threads[-1].start()
        yield far
        for inside in far:
            inside.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def run(relay: Relay) -> None:
    relay.run()
    os.close(relay.tun)
    relay.selector.close()
    for link in relay.links.values():
        link.socket.close()


def test_packets_arrive_in_order_by_way_of_the_first_node(insides: list[socket.socket]) -> None:
    first, second, third = (address_of(position) for position in range(3))
    many = [packet(second, third, struct.pack("!I", number)) for number in range(60)]
    many.append(packet(second, third, b"large" * 12_000))
    received: list[bytes] = []

    def receive() -> None:
        for _ in many:
            received.append(insides[2].recv(1 << 16))

    reader = threading.Thread(target=receive)
    reader.start()
    for one in many:
        insides[1].sendall(one)
    reader.join(20)
    assert received == many
    insides[2].sendall(packet(first, second))  # a forged sender
    insides[2].sendall(packet(third, "10.77.9.9"))
    insides[2].sendall(packet(third, second, b"last"))
    assert insides[1].recv(1 << 16) == packet(third, second, b"last")
