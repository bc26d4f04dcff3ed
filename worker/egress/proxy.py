"""Proxy of one attempt: connects a program to the hosts of its list, by name, and to no others.

It runs outside the sandbox, as a process of its own without rights, and accepts connections on a
socket that listens inside. A client says `CONNECT name:port`; the proxy looks the name up, judges
the address, and connects to the very address that it judged. What passes through is counted by
host. It has the standard library only, and hears from its parent over one socket:

    from the parent   {"reach": [rule], "ceiling": [rule] or null, "key": text or null}; again when
                      the list has changed. The end of the connection ends the proxy
    to the parent     {"hosts": [use of a host]}, whenever something has changed

The socket that listens comes over another one, as a file descriptor.
"""

import asyncio
import contextlib
import ctypes
import hmac
import json
import os
import resource
import signal
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor  # here, as nothing can be imported without rights
from dataclasses import asdict, dataclass, field
from typing import NoReturn

from core.spec.hosts import HTTPS, HostRule, host_and_port, host_rules, named, rule_for
from worker.egress.addresses import may_connect
from worker.egress.server_name import MAX_HELLO, Incomplete, NotTls, server_name

MAX_TUNNELS = 128  # at a time; further connections wait in the sandbox
MAX_HEAD = 8192
HEAD_WITHIN_S = 10.0  # for a request, and again for the first message of TLS
CONNECT_WITHIN_S = 10.0
ADDRESSES_TRIED = 4
LOOKUPS = 4  # of names, at a time
IDLE_S = 600.0
PIECE = 1 << 17
MAX_MESSAGE = 1 << 17
MAX_REACHED, MAX_REFUSED = 64, 32  # hosts that are counted each by its name
OTHERS = "other hosts"
NO_NAME = "(not a name)"
REPORT_EVERY_S = 0.5
KEY_USER = "trainyard"
PR_SET_NAME, PR_SET_NO_NEW_PRIVS = 15, 38
PROCESS_NAME = b"egress-proxy"

libc = ctypes.CDLL(None)  # here, as nothing can be loaded without rights

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class RefusedRequest(Exception):
    """A request that is not carried out."""

    def __init__(self, status: int, why: str, *, host: str = NO_NAME) -> None:
        super().__init__(why)
        self.status, self.why, self.host = status, why, host


@dataclass
class HostUse:
    """Use of one host so far."""

    host: str
    connections: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    why: str = ""
    """Reason of the last refusal."""


@dataclass
class Tally:
    """Uses by host; of a program that tries very many, the later ones are counted together."""

    reached: dict[str, HostUse] = field(default_factory=dict)
    refused: dict[str, HostUse] = field(default_factory=dict)
    has_changed: bool = False

    def reach(self, host: str) -> HostUse:
        """Count a connection, and return its host's use, to which its bytes are added."""
        use = _entry(self.reached, host, MAX_REACHED)
        use.connections += 1
        self.has_changed = True
        return use

    def refuse(self, host: str, why: str) -> None:
        use = _entry(self.refused, host, MAX_REFUSED)
        use.refused += 1
        use.why = why[:300]
        self.has_changed = True

    def hosts(self) -> list[HostUse]:
        """Return the uses of all hosts, those that were reached first."""
        both = []
        for host, use in self.reached.items():
            refused = self.refused.get(host)
            more = {} if refused is None else {"refused": refused.refused, "why": refused.why}
            both.append(HostUse(**{**asdict(use), **more}))
        return both + [use for host, use in self.refused.items() if host not in self.reached]


def _entry(known: dict[str, HostUse], host: str, limit: int) -> HostUse:
    name = host if host in known or len(known) < limit else OTHERS
    return known.setdefault(name, HostUse(name))


@dataclass(eq=False)
class Tunnel:
    """A connection through the proxy."""

    name: str
    port: int
    address: str
    inside: socket.socket
    outside: socket.socket
    use: HostUse
    moved_at: float = field(default_factory=time.monotonic)

    def end(self) -> None:
        """End both connections, whoever waits for them."""
        for one in (self.inside, self.outside):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Proxy of the hosts in `reach`, as far as `ceiling` allows them too."""

    def __init__(self, *, resolve: Resolve | None = None) -> None:
        self.resolve = resolve or self._look_up
        self.reach: list[HostRule] = []
        self.ceiling: list[HostRule] | None = None
        self.key = ""
        self.tally = Tally()
        self.tunnels: set[Tunnel] = set()

    def follow(self, told: dict[str, object]) -> None:
        """Take a list over; tunnels to hosts that are on it no more end at once."""
        reach, ceiling, key = told["reach"], told["ceiling"], told["key"]
        assert isinstance(reach, list)
        self.reach = host_rules(reach)
        self.ceiling = host_rules(ceiling) if isinstance(ceiling, list) else None
        self.key = key if isinstance(key, str) else ""
        for tunnel in list(self.tunnels):
            if not self.allows(tunnel):
                tunnel.end()

    def allows(self, tunnel: Tunnel) -> bool:
        """Return True if a tunnel may go on by the present list."""
        rule = self.rule(tunnel.name, tunnel.port)
        return rule is not None and may_connect(tunnel.address, is_private=rule.is_private)

    def rule(self, name: str, port: int) -> HostRule | None:
        """Return the rule by which a host may be reached; None if it may not."""
        rule = rule_for(name, port, self.reach)
        if rule is None or self.ceiling is None:
            return rule
        above = rule_for(name, port, self.ceiling)
        if above is None:
            return None
        is_private = rule.is_private and above.is_private
        return HostRule(rule.name, rule.port, rule.is_wildcard, is_private)

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections for ever, MAX_TUNNELS at a time."""
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(MAX_TUNNELS)
        tasks: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            free.release()

        while True:
            await free.acquire()
            try:
                inside, _ = await loop.sock_accept(listening)
            except OSError:  # it has gone away meanwhile
                free.release()
                continue
            task = asyncio.create_task(self.carry(inside))
            tasks.add(task)
            task.add_done_callback(ended)

    async def carry(self, inside: socket.socket) -> None:
        """Carry one connection to its end."""
        with inside:
            inside.setblocking(False)
            try:
                name, port = await self._asked(inside)
                address, outside = await self._connected(name, port)
            except RefusedRequest as refusal:
                self.tally.refuse(refusal.host, refusal.why)
                await answer(inside, refusal.status, refusal.why)
                return
            except (OSError, TimeoutError):
                return  # it has gone away, or says nothing
            with outside:
                await self._tunnel(name, port, address, inside, outside)

    async def _asked(self, inside: socket.socket) -> tuple[str, int]:
        """Return the host that a connection asks for, if it may be reached. Raises Refused."""
        head, early = await read_head(inside)
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise RefusedRequest(400, "this is not a request that a proxy understands")
        if words[0] != "CONNECT":
            raise RefusedRequest(
                405, "only https is carried: the proxy answers CONNECT, not plain http requests"
            )
        if self.key and not has_key(lines[1:], self.key):
            raise RefusedRequest(407, "this proxy is another program's")
        if early:
            raise RefusedRequest(400, "there was data before the answer to CONNECT")
        try:
            name, port = host_and_port(words[1])
        except ValueError:
            raise RefusedRequest(
                403, "only hosts with a name and a port may be reached, no addresses"
            ) from None
        if self.rule(name, port) is None:
            raise RefusedRequest(
                403,
                f"{name}:{port} is not among the hosts that this job may reach: "
                f"{named(self.reach)[:1000]}"
                f"{self._narrowed_here()}",
                host=f"{name}:{port}",
            )
        return name, port

    def _narrowed_here(self) -> str:
        if self.ceiling is None:
            return ""
        return f" (this node allows at most {named(self.ceiling)[:500]})"

    async def _connected(self, name: str, port: int) -> tuple[str, socket.socket]:
        """Return an address of a host that was judged, and a connection to it. Raises Refused."""
        host = f"{name}:{port}"
        try:
            addresses = await self.resolve(name, port)
        except OSError as error:
            raise RefusedRequest(502, f"{name} has no address: {error}", host=host) from error
        rule = self.rule(name, port)  # again: the list may have changed meanwhile
        if rule is None:
            raise RefusedRequest(403, f"{host} may not be reached any more", host=host)
        good = [
            one
            for one in addresses
            if may_connect(one, is_private=rule.is_private) and (rule.is_private or not is_own(one))
        ]
        if not good:
            raise RefusedRequest(
                403,
                f"{name} has no address on the internet, so it is not reached; an administrator "
                f"lists a host of the site's own network as {HostRule(name, port, False, True)}",
                host=host,
            )
        reason = "it did not answer"
        for address in good[:ADDRESSES_TRIED]:
            try:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    return address, await connect(address, port)
            except TimeoutError:
                continue
            except OSError as error:
                reason = error.strerror or str(error)
        raise RefusedRequest(502, f"{host} cannot be reached: {reason}", host=host)

    async def _tunnel(
        self, name: str, port: int, address: str, inside: socket.socket, outside: socket.socket
    ) -> None:
        use = self.tally.reach(f"{name}:{port}")
        tunnel = Tunnel(name, port, address, inside, outside, use)
        self.tunnels.add(tunnel)
        if not self.allows(tunnel):  # the list has changed while it was connected
            tunnel.end()
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(inside, b"HTTP/1.1 200 Connection established\r\n\r\n")
            if port == HTTPS:
                begun = await read_hello(inside, name)
                await loop.sock_sendall(outside, begun)
                use.sent_bytes += len(begun)
            # Each of them ends the other: by the end of its source, or by ending the tunnel.
            await asyncio.gather(self._pump(tunnel, up=True), self._pump(tunnel, up=False))
        except RefusedRequest as refusal:
            self.tally.refuse(f"{name}:{port}", refusal.why)
        except (OSError, TimeoutError):
            pass  # one of them has gone away
        finally:
            self.tunnels.discard(tunnel)
            self.tally.has_changed = True

    async def _pump(self, tunnel: Tunnel, *, up: bool) -> None:
        """Copy one direction of a tunnel until its source ends."""
        loop = asyncio.get_running_loop()
        source, target = (tunnel.inside, tunnel.outside) if up else (tunnel.outside, tunnel.inside)
        buffer = bytearray(PIECE)
        view = memoryview(buffer)
        try:
            while size := await loop.sock_recv_into(source, buffer):
                await loop.sock_sendall(target, view[:size])
                tunnel.moved_at = time.monotonic()
                if up:
                    tunnel.use.sent_bytes += size
                else:
                    tunnel.use.received_bytes += size
                self.tally.has_changed = True
        except OSError:
            tunnel.end()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def end_idle(self) -> None:
        """End tunnels in which nothing has moved for long."""
        now = time.monotonic()
        for tunnel in list(self.tunnels):
            if now - tunnel.moved_at > IDLE_S:
                tunnel.end()

    async def _look_up(self, name: str, port: int) -> Sequence[str]:
        found = await asyncio.get_running_loop().getaddrinfo(
            name.encode(), port, type=socket.SOCK_STREAM
        )
        return [str(address[0]) for *_, address in found]


def is_own(address: str) -> bool:
    """Return True if this is an address of this machine, which reaches it from that very one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect((address, HTTPS))  # sends nothing
        except OSError:
            return False  # no way leads there
        return bool(any_socket.getsockname()[0] == any_socket.getpeername()[0])


async def connect(address: str, port: int) -> socket.socket:
    """Return a connection to an address. Raises OSError."""
    outside = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        outside.setblocking(False)
        await asyncio.get_running_loop().sock_connect(outside, (address, port))
        outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        outside.close()
        raise
    return outside


async def read_head(inside: socket.socket) -> tuple[bytes, bytes]:
    """Return a request without the empty line at its end, and what came after it.

    Raises Refused if it is too long; OSError, and TimeoutError if it does not come soon.
    """
    loop = asyncio.get_running_loop()
    head = b""
    async with asyncio.timeout(HEAD_WITHIN_S):
        while b"\r\n\r\n" not in head:
            if len(head) > MAX_HEAD:
                raise RefusedRequest(431, "the request is too long")
            piece = await loop.sock_recv(inside, MAX_HEAD)
            if not piece:
                raise ConnectionResetError
            head += piece
    head, _, early = head.partition(b"\r\n\r\n")
    return head, early


async def read_hello(inside: socket.socket, name: str) -> bytes:
    """Return the first message of TLS, which has to ask for the host that was connected to.

    Raises Refused; OSError, and TimeoutError if it does not come soon.
    """
    loop = asyncio.get_running_loop()
    begun = b""
    async with asyncio.timeout(HEAD_WITHIN_S):
        while True:
            piece = await loop.sock_recv(inside, MAX_HEAD)
            if not piece:
                raise ConnectionResetError
            begun += piece
            try:
                asked = server_name(begun)
            except Incomplete:
                if len(begun) > 2 * MAX_HELLO:
                    raise RefusedRequest(400, "its first TLS message is too long") from None
                continue
            except NotTls as error:
                raise RefusedRequest(400, f"port {HTTPS} carries TLS alone: {error}") from error
            if asked.lower().removesuffix(".") != name:
                raise RefusedRequest(403, "TLS asked for another host than CONNECT did")
            return begun


def has_key(lines: Sequence[str], key: str) -> bool:
    """Return True if the header lines of a request hold the key of this proxy."""
    wanted = f"Basic {b64encode(f'{KEY_USER}:{key}'.encode()).decode()}"
    given = [
        value.strip()
        for name, _, value in (line.partition(":") for line in lines)
        if name.lower() == "proxy-authorization"
    ]
    return len(given) == 1 and hmac.compare_digest(given[0].encode(), wanted.encode())


async def answer(inside: socket.socket, status: int, why: str) -> None:
    """Refuse. The sentence is the reason phrase too: many clients show nothing but that."""
    body = f"{why}.\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {status} {why}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(HEAD_WITHIN_S):
            await asyncio.get_running_loop().sock_sendall(
                inside, head.encode("ascii", "replace") + body
            )


# ----------------------------------------------------------------------------------- the process


async def run(control: socket.socket, listening: socket.socket, *, resolve: Resolve | None) -> None:
    """Serve until the parent ends the control connection; its first message is awaited."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(LOOKUPS))
    proxy = Proxy(resolve=resolve)
    control.setblocking(False)
    first = await loop.sock_recv(control, MAX_MESSAGE)
    if not first:
        return
    proxy.follow(json.loads(first))
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(proxy.serve(listening))
        reporting = tasks.create_task(report(proxy, control))
        while told := await loop.sock_recv(control, MAX_MESSAGE):
            proxy.follow(json.loads(told))
        serving.cancel()
        reporting.cancel()
    await say(proxy, control)


def receive_listening(given: socket.socket) -> socket.socket | None:
    """Wait for the socket that listens inside; return None if there is no sandbox any more."""
    with given:
        _, descriptors, _, _ = socket.recv_fds(given, 1, 1)
    return socket.socket(fileno=descriptors[0]) if descriptors else None


async def report(proxy: Proxy, control: socket.socket) -> None:
    """Report what has changed, now and then, and end idle tunnels."""
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        proxy.end_idle()
        if proxy.tally.has_changed:
            await say(proxy, control)


async def say(proxy: Proxy, control: socket.socket) -> None:
    proxy.tally.has_changed = False
    hosts = [asdict(use) for use in proxy.tally.hosts()]
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(
            control, json.dumps({"hosts": hosts}).encode()
        )


def give_up_rights(uid: int | None) -> None:
    """Be an ordinary process from now on: of `uid`, if this one is root."""
    most = 2 * MAX_TUNNELS + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    zero = [ctypes.c_ulong(0)] * 3
    libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *zero)
    libc.prctl(PR_SET_NAME, PROCESS_NAME, *zero)


def main(control: int, given: int, uid: int | None, *, resolve: Resolve | None = None) -> NoReturn:
    """Be the proxy of the parent at the other end of `control`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    give_up_rights(uid)
    # All else waits until then, so that it does not slow the sandbox's start.
    listening = receive_listening(socket.socket(fileno=given))
    if listening is not None:
        with contextlib.suppress(ConnectionError):
            asyncio.run(run(socket.socket(fileno=control), listening, resolve=resolve))
    os._exit(0)  # a look-up that hangs holds nobody up


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None)
