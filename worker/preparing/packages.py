"""Proxy for the installation of packages, which runs outside a sandbox.

It listens on this machine's loopback, where others are too, and so it wants a key.
"""

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from core.spec.hosts import HTTPS, HostRule, host_name, rule_for
from core.wire.messages import HostUse
from worker.egress.launch import proxy_variables, start_proxy
from worker.egress.proxy import KEY_USER
from worker.scripts.sandbox_users import user_for_a_while

USUAL_INDEX = "https://pypi.org/simple"


def has_index(rules: Sequence[HostRule], index: str | None) -> bool:
    """Return True if these rules allow the package index at this address; None: PyPI's."""
    address = urlsplit(index or USUAL_INDEX)
    try:
        name, port = host_name(address.hostname or ""), address.port or HTTPS
    except ValueError:
        return False
    return address.scheme == "https" and rule_for(name, port, rules) is not None


@contextmanager
def proxy_for_packages(
    reach: Sequence[str],
    ceiling: Sequence[str] | None,
    *,
    keep: Callable[[tuple[HostUse, ...]], None],
) -> Iterator[Mapping[str, str]]:
    """Yield the variables that lead pip to a proxy, which reaches these hosts.

    `keep` gets the use of each host at the end.
    """
    key = secrets.token_hex(32)
    outside, inside = socket.socketpair()
    with (
        outside,
        inside,
        user_for_a_while() as uid,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        proxy = start_proxy(outside, uid=uid, environment={})
        try:
            proxy.follow(reach, ceiling, key=key)
            socket.send_fds(inside, [b"l"], [listening.fileno()])
            port = listening.getsockname()[1]
            yield proxy_variables(f"http://{KEY_USER}:{key}@127.0.0.1:{port}")
        finally:
            proxy.finish()
            proxy.wait()
            keep(proxy.hosts)


def index_of_pip() -> str | None:
    """Return the address of the index that this node's pip uses; None: PyPI's."""
    return os.environ.get("PIP_INDEX_URL") or None
