"""Address of this node for other nodes, and the network interface that has it."""

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil


@dataclass(frozen=True)
class Peers:
    """Address of this node as seen by the others."""

    address: str
    interface: str
    """Interface with that address; if it is empty, gloo and NCCL choose one themselves."""


def find_peers(setting: str, api_url: str) -> Peers:
    """Return the address in the setting, else the one that this machine uses towards the API."""
    address = setting or address_towards(api_url)
    return Peers(address, interface_of(address))


def address_towards(url: str) -> str:
    """Return this machine's address on the way to a host; loopback's if there is no way."""
    parts = urlsplit(url)
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # a datagram socket sends nothing here
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def interface_of(address: str) -> str:
    """Return the network interface, such as `eth0`, with this address (or this host's name)."""
    try:
        wanted = {found[4][0] for found in socket.getaddrinfo(address, None)}
    except OSError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address in wanted for each in addresses):
            return name
    return ""
