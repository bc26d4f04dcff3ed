"""Sends one mail by SMTP."""

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime

from core.clock import utc_now
from core.notices.words import Letter
from core.settings import SchedulerSettings

TIMEOUT_S = 20.0


class NotSent(Exception):
    """It has not left; the message says why, for the person who waits for it."""


def send_mail(settings: SchedulerSettings, *, to: str, letter: Letter, message_id: str) -> None:
    """Hand a letter to the mail server. Raises NotSent. `message_id` is the same on every try."""
    message = EmailMessage()
    message["From"] = settings.mail_from
    message["To"] = to
    message["Subject"] = letter.subject
    message["Date"] = format_datetime(utc_now())
    message["Message-ID"] = f"<{message_id}@{settings.mail_from.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # no answer from an out-of-office robot
    message.set_content(letter.text)
    try:
        with _connected(settings) as server:
            if settings.smtp_user:
                server.login(settings.smtp_user, settings.smtp_password.get_secret_value())
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        code, refusal = error.recipients[to]
        raise NotSent(f"The mail server refused {to}: {code} {_read(refusal)}") from error
    except smtplib.SMTPResponseException as error:
        said = _read(error.smtp_error)
        raise NotSent(f"The mail server said: {error.smtp_code} {said}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(f"The mail server {settings.smtp_host} can't be used: {error}") from error


def _connected(settings: SchedulerSettings) -> smtplib.SMTP:
    address = (settings.smtp_host, settings.smtp_port)
    if settings.smtp_security == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(*address, timeout=TIMEOUT_S, context=context)
    server = smtplib.SMTP(*address, timeout=TIMEOUT_S)
    if settings.smtp_security == "starttls":
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def _read(said: bytes | str) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return " ".join(text.split())[:200]
