"""Tries every way out of a sandbox that may reach one host, and prints what came of it as JSON.

`hostile_egress.py ADDRESS PORT API_PORT`: the address of the machine, the port of the one host that
may be reached, another port that is listened on. Standard library only.
"""

import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable

HOST, PORT, OTHER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
GOOD = f"site.example:{PORT}"
PROXY = ("127.0.0.1", int(os.environ["HTTPS_PROXY"].rpartition(":")[2]))
found: dict[str, object] = {}


def tried(name: str, act: Callable[[], object]) -> None:
    """What `act` gives, or how it is refused."""
    try:
        found[name] = act()
    except OSError as error:
        found[name] = f"{type(error).__name__}: {error}"


def ask(*pieces: str, within_s: float = 20) -> str:
    """The first line that the proxy answers to these bytes; empty if it hangs up."""
    with socket.create_connection(PROXY, within_s) as client:
        for piece in pieces:
            client.sendall(piece.encode("latin-1"))
        return client.recv(4096).decode().split("\r\n")[0]


def connect(target: str) -> str:
    return ask(f"CONNECT {target} HTTP/1.1\r\nHost: {GOOD}\r\n\r\n")


def directly(
    family: socket.AddressFamily, kind: socket.SocketKind, address: tuple[str, int]
) -> str:
    with socket.socket(family, kind) as client:
        client.settimeout(2)
        client.connect(address)
        client.sendall(b"x")
        return "sent"


def hello(name: str | None) -> str:
    """How TLS for `name` ends in a tunnel to port 443 of site443.example."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(PROXY, 20) as client:
        client.sendall(b"CONNECT site443.example:443 HTTP/1.1\r\n\r\n")
        if b" 200 " not in client.recv(4096):
            return "no tunnel"
        with context.wrap_socket(client, server_hostname=name) as tls:
            return str(tls.version())


def plain() -> str:
    with socket.create_connection(PROXY, 20) as client:
        client.sendall(b"CONNECT site443.example:443 HTTP/1.1\r\n\r\n")
        client.recv(4096)
        client.sendall(b"GET / HTTP/1.1\r\nHost: site443.example\r\n\r\n")
        return client.recv(4096).decode()


def many() -> dict[str, object]:
    """Open very many connections that say nothing, then ask for the one host."""
    silent = []
    for _ in range(1000):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(PROXY)
        silent.append(one)
    began = time.monotonic()
    said = connect(GOOD)
    for one in silent:
        one.close()
    return {"said": said, "after_s": time.monotonic() - began}


def at_once() -> list[str]:
    """Ask for the one host from many threads."""
    answers: list[str] = []

    def one() -> None:
        for _ in range(5):
            answers.append(connect(GOOD))

    threads = [threading.Thread(target=one) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(set(answers))


def main() -> None:
    for target in (
        GOOD,
        GOOD.upper(),
        f"site.example.:{PORT}",
        f"site.example:{OTHER}",
        "site.example",
        "site.example:",
        f"site.example:{PORT}:{PORT}",
        f"other.example:{PORT}",
        f"sub.site.example:{PORT}",
        f"site.example.evil.example:{PORT}",
        f"user@site.example:{PORT}",
        f"site.example%00.evil.example:{PORT}",
        f"xn--site-.example:{PORT}",
        f"\xe9vil.example:{PORT}",
        *(
            f"{address}:{PORT}"
            for address in (
                HOST,
                "127.0.0.1",
                "2130706433",
                "0x7f000001",
                "0x7f.1",
                "127.1",
                "0177.0.0.1",
                "127.0.0.1.",
                "[::1]",
                "[::ffff:127.0.0.1]",
                "::1",
                "0",
                "localhost",
                "169.254.169.254",
                "[fd00:ec2::254]",
            )
        ),
        f"{PROXY[0]}:{PROXY[1]}",
        f"localhost:{PROXY[1]}",
        # Listed, but their addresses are not of the internet.
        *(f"{name}.example:{PORT}" for name in ("loop", "meta", "mapped", "intranet", "nat64")),
        f"looped.example:{PORT}",
        f"mixed.example:{PORT}",
        f"absent.example:{PORT}",
    ):
        tried(f"CONNECT {target}", lambda target=target: connect(target))  # type: ignore[misc]
    line = f"CONNECT {GOOD} HTTP/1.1\r\n"
    for name, pieces in {
        "two requests": [f"{line}\r\nCONNECT other.example:{PORT} HTTP/1.1\r\n\r\n"],
        "early data": [f"{line}\r\n\x16\x03\x01"],
        "absolute form": [f"GET http://site.example:{PORT}/ HTTP/1.1\r\n\r\n"],
        "own form": ["GET / HTTP/1.1\r\n\r\n"],
        "post": [f"POST http://{HOST}/ HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"],
        "HTTP/2": ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        "carriage return": [f"CONNECT {GOOD}\rother.example:{PORT} HTTP/1.1\r\n\r\n"],
        "tab": [f"CONNECT\t{GOOD}\tHTTP/1.1\r\n\r\n"],
        "two targets": [f"CONNECT {GOOD} other.example:{PORT} HTTP/1.1\r\n\r\n"],
        "null": [f"CONNECT {GOOD}\0.other.example:{PORT} HTTP/1.1\r\n\r\n"],
        "long": [f"{line}X: {'x' * 20_000}\r\n\r\n"],
        "in pieces": [*line, "\r\n"],
        "never finished": [line],
        "line feeds alone": [f"CONNECT {GOOD} HTTP/1.1\n\n"],
    }.items():
        tried(name, lambda pieces=pieces: ask(*pieces))  # type: ignore[misc]
    v4, v6, tcp, udp = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
    tried("tcp", lambda: directly(v4, tcp, (HOST, PORT)))
    tried("tcp, the API", lambda: directly(v4, tcp, (HOST, OTHER)))
    tried("udp", lambda: directly(v4, udp, (HOST, 53)))
    tried("udp, internet", lambda: directly(v4, udp, ("192.0.2.53", 53)))
    tried("IPv6", lambda: directly(v6, tcp, ("2001:db8::1", 443)))
    tried("metadata", lambda: directly(v4, tcp, ("169.254.169.254", 80)))
    tried("raw", lambda: socket.socket(v4, socket.SOCK_RAW, socket.IPPROTO_ICMP).fileno())
    tried("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno())
    tried("name server", lambda: str(socket.getaddrinfo("site.example", 443)))
    tried("listen at its port", lambda: socket.create_server(PROXY).fileno())
    tried("interfaces", lambda: [name for _, name in socket.if_nameindex()])
    tried("TLS", lambda: hello("site443.example"))
    tried("TLS for another", lambda: hello("other.example"))
    tried("TLS for nobody", lambda: hello(None))
    tried("not TLS", plain)
    tried("at once", at_once)
    tried("many", many)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
