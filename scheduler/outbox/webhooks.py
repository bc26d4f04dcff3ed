"""Delivery of one signed notice to a webhook."""

import hashlib
import hmac
import http.client
import json
import socket
import ssl
from contextlib import closing
from datetime import datetime

from core.notices.outward import NotOutward, Target, resolve, target_of
from core.notices.words import title
from core.tables.notices import Notice
from scheduler.outbox.deadline import shut_down_after
from scheduler.outbox.mail import NotSent

WITHIN_S = 10.0  # in all, from the first packet to the status; only the name is looked up before


def post(
    url: str,
    *,
    secret: str,
    notice: Notice,
    private: bool,
    now: datetime,
    within_s: float = WITHIN_S,
) -> None:
    """Deliver a notice. Raises NotSent for anything but a 2xx status within `within_s` seconds.

    Redirects are not followed.
    """
    late = f"The webhook did not answer within {within_s:g} s."
    try:
        target = target_of(url, private=private)
        addresses = resolve(target, private=private)
        headers = _headers(target, notice, secret, now)
        connection = http.client.HTTPConnection(target.host, target.port, timeout=within_s)
        with (
            closing(connection),
            shut_down_after(within_s, lambda: connection.sock) as over,
        ):
            try:
                _connect(connection, target, addresses[0])
                connection.request("POST", target.path, body_of(notice), headers)
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as error:
                if not over.is_set() and not isinstance(error, TimeoutError):
                    raise
                raise NotSent(late) from error
            if over.is_set():  # in the middle of its headers
                raise NotSent(late)
    except NotOutward as error:
        raise NotSent(f"The webhook must not be called: {error}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotSent(f"The webhook cannot be reached: {error}") from error
    if not 200 <= status < 300:
        raise NotSent(f"The webhook answered {status}.")


def body_of(notice: Notice) -> bytes:
    """Return the body of the request: the notice as JSON."""
    document = {
        "id": notice.id,
        "kind": notice.kind,
        "title": title(notice.kind),
        "subject": notice.subject,
        "message": notice.facts["message"],
        "facts": notice.facts,
        "created_at": notice.created_at.isoformat(),
    }
    return json.dumps(document).encode()


def signature(secret: str, timestamp: int, content: bytes) -> str:
    """Return the hex HMAC-SHA256 of `<timestamp>.<body>`.

    A receiver checks it, and that the timestamp (Unix seconds) is recent.
    """
    signed = f"{timestamp}.".encode() + content
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _headers(target: Target, notice: Notice, secret: str, now: datetime) -> dict[str, str]:
    timestamp = int(now.timestamp())
    return {
        "Host": target.host_header,
        "Content-Type": "application/json",
        "User-Agent": "Trainyard",
        "Trainyard-Notice": str(notice.id),
        "Trainyard-Signature": f"t={timestamp},v1={signature(secret, timestamp, body_of(notice))}",
    }


def _connect(connection: http.client.HTTPConnection, target: Target, address: str) -> None:
    """Connect to exactly this address; over TLS the certificate must be for the target's host."""
    connection.sock = socket.create_connection((address, target.port), timeout=connection.timeout)
    connection.sock.settimeout(None)  # from here on the total deadline holds
    if target.is_https:
        connection.sock = ssl.create_default_context().wrap_socket(
            connection.sock, server_hostname=target.host, do_handshake_on_connect=False
        )
        connection.sock.do_handshake()
