"""Addresses that people may make us call: those of webhooks, looked up once and then held to.

A name is resolved, every address it has must be public, and the connection goes to one of those
very addresses: a name that points elsewhere a moment later changes nothing.
"""

import socket
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

MAX_URL = 500
# Passed by `is_global`, but not public: IPv4 addresses in disguise, which a gateway may lead
# anywhere, and networks of a site.
INSIDE = [
    ip_network(network)
    for network in (
        "::/96",  # IPv4-compatible, RFC 4291
        "::ffff:0:0:0/96",  # IPv4-translated, RFC 2765
        "64:ff9b::/96",  # NAT64, RFC 6052
        "64:ff9b:1::/48",  # NAT64 of a site's own, RFC 8215
        "fec0::/10",  # site-local, RFC 3879
    )
]


class NotOutward(ValueError):
    """An address that must not be called; the message says why."""


@dataclass(frozen=True)
class Target:
    """A checked address of a webhook."""

    is_https: bool
    host: str
    port: int
    path: str
    """Path with its query."""

    @property
    def host_header(self) -> str:
        """Value of HTTP's Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_https else 80) else f"{host}:{self.port}"


def target_of(url: str, *, private: bool) -> Target:
    """Return the parts of `url`. Raises NotOutward for an invalid webhook; resolves nothing yet."""
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise NotOutward(f"a URL may have at most {MAX_URL} printable ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise NotOutward(f"it is not a valid URL: {error}") from error
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise NotOutward("write it like https://example.org/hook")
    if parts.scheme == "http" and not private:
        raise NotOutward("it must begin with https://, so that the notices are encrypted")
    if parts.username is not None or parts.password is not None:
        raise NotOutward("it must not contain a name and password; the requests are signed instead")
    is_https = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(is_https, parts.hostname, port or (443 if is_https else 80), path)
    try:
        literal = str(ip_address(target.host))
    except ValueError:
        return target
    if not private:
        _require_public(literal)
    return target


def resolve(target: Target, *, private: bool) -> list[str]:
    """Return the addresses behind a target, all public unless `private`.

    Raises NotOutward, or OSError.
    """
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = sorted({str(info[4][0]) for info in found})
    if not private:
        for address in addresses:
            _require_public(address)
    return addresses


def _require_public(address: str) -> None:
    """Refuse loopback, private, link-local (cloud metadata), shared and reserved addresses."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip.sixtofour or ip
    if not ip.is_global or ip.is_multicast or any(ip in network for network in INSIDE):
        raise NotOutward(f"{address} is not a public internet address")
