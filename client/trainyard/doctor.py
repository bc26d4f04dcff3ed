"""Findings of `trainyard doctor`: one line for each check, with the remedy."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

import httpx2

from trainyard.client import Trainyard
from trainyard.errors import TrainyardError
from trainyard.transport import config
from trainyard.transport.connection import Patience, client_version

Level = Literal["ok", "warn", "fail"]
TOLD_SKEW_S = 5.0
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    part: str
    """`client`, `server` or `node`."""
    what: str
    level: Level
    """`warn` means that it works but needs attention, `fail` that something does not work."""
    found: str
    todo: str = ""


@dataclass(frozen=True)
class Examiner:
    """Maker of the findings of one part."""

    part: str

    def __call__(self, what: str, level: Level, found: str, todo: str = "") -> Finding:
        return Finding(self.part, what, level, found, todo)


def examine_client() -> Iterator[Finding]:
    """Check this machine as a client: address, connection, clock, version, token."""
    finding = Examiner("client")
    yield finding("python", "ok", f"{platform.python_version()}, trainyard {client_version()}")
    try:
        access = config.resolve(None, None)
    except TrainyardError as error:
        yield finding("server", "fail", str(error), "Name it: trainyard login https://...")
        return
    if config.is_readable_on_the_way(access.url):
        yield finding(
            "encryption",
            "warn",
            f"{access.url} is not encrypted",
            "Use the https address; over http, others on the network can read your token.",
        )
    try:
        answer = httpx2.get(f"{access.url}/healthz", timeout=PATIENCE_S)
    except httpx2.TransportError as error:
        yield finding(
            "server",
            "fail",
            f"{access.url} does not answer: {error}",
            "Is the address right (trainyard login URL), and does the platform run?",
        )
        return
    yield from examine_answer(access.url, answer)
    if access.token is None:
        yield finding("token", "warn", "none for this server", "Sign in: trainyard login")
        return
    try:
        with Trainyard(access.url, access.token, patience=Patience(retries=0)) as client:
            me = client.me()
    except TrainyardError as error:
        yield finding("token", "fail", str(error), "Sign in again: trainyard login")
        return
    yield finding("token", "ok", f"{me.user.name}, {me.user.role}")


def examine_answer(url: str, answer: httpx2.Response) -> Iterator[Finding]:
    """Check the server, the versions and the clocks by an answer to /healthz."""
    finding = Examiner("client")
    if answer.status_code != 200:
        yield finding(
            "server",
            "fail",
            f"{url} answered {answer.status_code}",
            "Another program may listen there, or the proxy in front cannot reach the server.",
        )
        return
    yield finding("server", "ok", url)
    theirs = str(answer.json().get("version", "unknown"))
    same = theirs.split(".")[:2] == client_version().split(".")[:2]
    yield finding(
        "version",
        "ok" if same else "warn",
        f"client {client_version()}, server {theirs}",
        "" if same else f"Install the server's version: {url}/v1/client shows the command.",
    )
    date = answer.headers.get("date")
    if date:
        skew_s = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
        right = abs(skew_s) < TOLD_SKEW_S
        yield finding(
            "clock",
            "ok" if right else "warn",
            f"{skew_s:+.0f} s from the server's",
            "" if right else "Synchronize it with a time server: timedatectl set-ntp true",
        )


def worst(findings: list[Finding]) -> Level:
    """Return the worst level of all findings; `ok` if there are none."""
    order: list[Level] = ["ok", "warn", "fail"]
    return max((finding.level for finding in findings), key=order.index, default="ok")
