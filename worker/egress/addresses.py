"""Judgement of the addresses that a host's name has. Pure.

A name of the internet may point anywhere, so it is the address that decides: one of this machine,
of its links, of the site's network, or of a cloud's metadata service is not reached by it.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address
NAT64 = ip_network("64:ff9b::/96")
SHARED = ip_network("100.64.0.0/10")  # carrier-grade NAT; some sites use it as their own
METADATA = tuple(
    map(ip_address, ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254",
                     "fd20:ce::254"))
)  # fmt: skip


def may_connect(text: str, *, is_private: bool) -> bool:
    """Return True if a host may be reached at this address.

    `is_private`: the administrator has said that it is in the site's own network.
    """
    address = inner(ip_address(text.partition("%")[0]))
    if address is None or address in METADATA:
        return False
    if address.is_loopback or address.is_link_local or address.is_multicast:
        return False
    if address.is_unspecified or address.is_reserved:
        return False
    if address.is_global:
        return True
    return is_private and (address.is_private or address in SHARED)


def inner(address: Address) -> Address | None:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself; None for
    tunnels (6to4, Teredo), whose inner address is somebody else's router."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None or address.teredo is not None:
        return None
    return address
