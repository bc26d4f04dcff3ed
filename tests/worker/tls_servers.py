"""Servers that speak TLS on this machine's own address, with a certificate authority of a test."""

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from worker.egress.addresses import may_connect


@cache
def own_address() -> str:
    """An address of this machine that is neither loopback nor of the internet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.254", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        address = str(any_socket.getsockname()[0])
    if not may_connect(address, is_private=True):
        pytest.skip(f"this machine's address {address} cannot stand for a site's own network")
    return address


class Authority:
    """A certificate authority, and certificates of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        self.certificate = self._sign(self.name, self.key, [], is_authority=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, names: Sequence[str]) -> ssl.SSLContext:
        """What a server of these names needs."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(x509.Name([]), key, names, is_authority=False)
        file = self.folder / f"{names[0]}.pem"
        file.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _sign(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: Sequence[str],
        *,
        is_authority: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), True)
        )
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
            builder = builder.add_extension(alternatives, True)
        return builder.sign(self.key, hashes.SHA256())


class TlsServer:
    """An HTTPS server on this machine's own address."""

    def __init__(
        self,
        authority: Authority,
        names: Sequence[str],
        answer: Callable[[BaseHTTPRequestHandler, Mapping[str, bytes]], None],
        *,
        port: int = 0,
    ) -> None:
        self.paths: list[str] = []
        self.files: dict[str, bytes] = {}
        paths, files = self.paths, self.files

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                paths.append(self.path)
                answer(self, files)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        address = own_address()
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET

        class Server(ThreadingHTTPServer):
            address_family = family
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # clients that go away are part of these tests

        self.server = Server((address, port), Handler)
        self.server.socket = authority.context(names).wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = int(self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def send(
    handler: BaseHTTPRequestHandler,
    body: bytes,
    *,
    kind: str = "text/plain",
    headers: Mapping[str, str] | None = None,
) -> None:
    """Answer 200."""
    handler.send_response(200)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
