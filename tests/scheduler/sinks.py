"""A mail server and a web server that only listen, refuse when told to, and keep what they got."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks enough SMTP for one mail a connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MailHandler)
        self.mails: list[EmailMessage] = []
        self.refusals: list[bytes] = []
        """Answers to the next RCPTs, before it accepts."""
        self.port: int = self.server_address[1]


class MailHandler(socketserver.StreamRequestHandler):
    """One connection."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, MailServer)
        self.wfile.write(b"220 sink\r\n")
        while line := self.rfile.readline():
            verb = line[:4].upper()
            if verb in (b"EHLO", b"HELO"):
                self.wfile.write(b"250 sink\r\n")
            elif verb == b"RCPT" and server.refusals:
                self.wfile.write(server.refusals.pop(0) + b"\r\n")
            elif verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                content = b""
                while (part := self.rfile.readline()) not in (b".\r\n", b""):
                    content += part.removeprefix(b".")
                mail = message_from_bytes(content, policy=policy.default)
                assert isinstance(mail, EmailMessage)
                server.mails.append(mail)
                self.wfile.write(b"250 kept\r\n")
            elif verb == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 ok\r\n")


class WebServer(ThreadingHTTPServer):
    """Keeps what is posted to it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PostHandler)
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        """Status of the next answers, before 204."""
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook?team=a"


class SlowServer(socketserver.ThreadingTCPServer):
    """Takes a call and says nothing, or a byte of its answer now and then, until it is closed."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *, drips: bool) -> None:
        super().__init__(("127.0.0.1", 0), SlowHandler)
        self.drips = drips
        self.calls = 0
        self.closing = threading.Event()
        self.port: int = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"


class SlowHandler(socketserver.BaseRequestHandler):
    """One call."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, SlowServer)
        server.calls += 1
        answer = b"HTTP/1.1 204 No Content\r\nSlow: "
        while not server.closing.wait(0.05):
            if server.drips:
                try:
                    self.request.sendall(answer[:1] or b"x")
                except OSError:
                    return
                answer = answer[1:]


class PostHandler(BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, WebServer)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.posts.append((dict(self.headers), body))
        self.send_response(server.answers.pop(0) if server.answers else 204)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """A running one."""
    with MailServer() as server, _serving(server):
        yield server


@contextmanager
def web_server() -> Iterator[WebServer]:
    """A running one."""
    with WebServer() as server, _serving(server):
        yield server


@contextmanager
def slow_server(*, drips: bool) -> Iterator[SlowServer]:
    """A running one; what it holds ends with it."""
    with SlowServer(drips=drips) as server, _serving(server):
        yield server
        server.closing.set()


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(10)
