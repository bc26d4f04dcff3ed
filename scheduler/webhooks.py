"""Posts one signed notice to a webhook."""

import hashlib
import hmac
import http.client
import json
import socket
import ssl
from datetime import datetime

from core.notices.outward import NotOutward, Target, resolve, target_of
from core.notices.words import title
from core.tables.notices import Notice
from scheduler.mail import NotSent

TIMEOUT_S = 10.0


def post(url: str, *, secret: str, notice: Notice, private: bool, now: datetime) -> None:
    """Deliver a notice. Raises NotSent for anything but a 2xx; redirects are not followed."""
    content = body_of(notice)
    try:
        target = target_of(url, private=private)
        addresses = resolve(target, private=private)
        connection = _connection(target, addresses[0])
        try:
            connection.request("POST", target.path, content, _headers(target, notice, secret, now))
            status = connection.getresponse().status
        finally:
            connection.close()
    except NotOutward as error:
        raise NotSent(f"The webhook may not be called: {error}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotSent(f"The webhook can't be reached: {error}") from error
    if not 200 <= status < 300:
        raise NotSent(f"The webhook answered {status}.")


def body_of(notice: Notice) -> bytes:
    """What is posted."""
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
    """Hex HMAC-SHA256 of `<timestamp>.<body>`: a receiver checks it, and that the time is near."""
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


def _connection(target: Target, address: str) -> http.client.HTTPConnection:
    """To this very address, with the certificate of the target's name."""
    raw = socket.create_connection((address, target.port), timeout=TIMEOUT_S)
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    connection.sock = raw
    if target.is_https:
        try:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(raw, server_hostname=target.host)
        except BaseException:
            raw.close()
            raise
    return connection
