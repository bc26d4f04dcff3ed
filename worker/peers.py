"""How other nodes reach this one: its address, and the network interface that has it."""

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil


@dataclass(frozen=True)
class Peers:
    """This node, as seen by the others."""

    address: str
    interface: str
    """Empty where no interface has the address: then gloo and NCCL choose one themselves."""


def find_peers(setting: str, api_url: str) -> Peers:
    """By the address that was set, else by the one that this machine uses towards the API."""
    address = setting or address_towards(api_url)
    return Peers(address, interface_of(address))


def address_towards(url: str) -> str:
    """The own address on the way to a host; that of loopback where there is no way."""
    parts = urlsplit(url)
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def interface_of(address: str) -> str:
    """The name of the network interface with this address (or this host's name), such as `eth0`."""
    try:
        wanted = {found[4][0] for found in socket.getaddrinfo(address, None)}
    except OSError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address in wanted for each in addresses):
            return name
    return ""
