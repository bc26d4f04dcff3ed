"""Delivery of one mail by SMTP."""

import smtplib
import ssl
from contextlib import closing, suppress
from email.message import EmailMessage
from email.utils import format_datetime

from core.base.clock import utc_now
from core.notices.words import Letter
from core.process.settings import SchedulerSettings
from scheduler.outbox.deadline import shut_down_after

WITHIN_S = 20.0  # in all: a letter is small, and a greeting may be slow


class NotSent(Exception):
    """A notice was not delivered; the message says why, for the person whom it is for."""


def send_mail(
    settings: SchedulerSettings,
    *,
    to: str,
    letter: Letter,
    message_id: str,
    within_s: float = WITHIN_S,
) -> None:
    """Hand a letter to the mail server within `within_s` seconds in all. Raises NotSent.

    `message_id` is the same on every attempt to send a letter.
    """
    message = EmailMessage()
    message["From"] = settings.mail_from
    message["To"] = to
    message["Subject"] = letter.subject
    message["Date"] = format_datetime(utc_now())
    message["Message-ID"] = f"<{message_id}@{settings.mail_from.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # no answer from an out-of-office robot
    message.set_content(letter.text)
    # A single step's timeout covers connecting and the start of TLS, without a socket to shut down.
    server = _server(settings, timeout_s=within_s + 1)
    try:
        with closing(server), shut_down_after(within_s, lambda: server.sock) as over:
            try:
                _hand_over(server, settings, message)
            except (smtplib.SMTPServerDisconnected, OSError) as error:
                if not over.is_set():
                    raise
                raise NotSent(
                    f"The mail server {settings.smtp_host} did not finish within {within_s:g} s."
                ) from error
    except smtplib.SMTPRecipientsRefused as error:
        code, refusal = error.recipients[to]
        raise NotSent(f"The mail server refused {to}: {code} {_read(refusal)}") from error
    except smtplib.SMTPResponseException as error:
        said = _read(error.smtp_error)
        raise NotSent(f"The mail server said: {error.smtp_code} {said}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(f"The mail server {settings.smtp_host} cannot be used: {error}") from error


def _server(settings: SchedulerSettings, *, timeout_s: float) -> smtplib.SMTP:
    """Return a client that is not connected yet: the deadline must know it before it waits for the
    server's greeting."""
    server = (
        smtplib.SMTP_SSL(timeout=timeout_s, context=ssl.create_default_context())
        if settings.smtp_security == "tls"
        else smtplib.SMTP(timeout=timeout_s)
    )
    # The constructor keeps the host name, which TLS checks the certificate against, only if it
    # connects at once.
    server._host = settings.smtp_host  # type: ignore[attr-defined]
    return server


def _hand_over(server: smtplib.SMTP, settings: SchedulerSettings, message: EmailMessage) -> None:
    code, said = server.connect(settings.smtp_host, settings.smtp_port)
    if code != 220:
        raise smtplib.SMTPConnectError(code, said)
    if settings.smtp_security == "starttls":
        server.starttls(context=ssl.create_default_context())
    if settings.smtp_user:
        server.login(settings.smtp_user, settings.smtp_password.get_secret_value())
    server.send_message(message)
    with suppress(smtplib.SMTPException, OSError):  # it has the letter, however it says goodbye
        server.quit()


def _read(said: bytes | str) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return " ".join(text.split())[:200]
