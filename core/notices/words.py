"""Text of a notice to a person, in plain words and on the clock of their zone. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from core.notices.notices import NoticeKind
from core.tables.notices import Notice

TITLES: dict[str, str] = {
    NoticeKind.LEASE_ENDING: "Your lease ends soon",
    NoticeKind.LEASE_MOVED: "Your lease has moved to another node",
    NoticeKind.LEASE_REFUNDED: "Your lease was refunded",
    NoticeKind.LEASE_IDLE: "Nothing is running in your lease",
    NoticeKind.LEASE_RECLAIMED: "Your lease was released: nothing ran in it",
    NoticeKind.LEASE_CANCELLED: "Your lease was cancelled",
    NoticeKind.LEASE_RESTORED: "Your lease was restored",
    NoticeKind.LEASES_CLEANED: "Some of your leases were removed",
    NoticeKind.BLOCK_OFFERED: "Hours from your waitlist are free",
    NoticeKind.OFFER_EXPIRED: "An offer has ended",
    NoticeKind.LEASE_FLAGGED: "A new policy does not allow your lease",
    NoticeKind.LEASE_CLOCK_MOVED: "Your lease has a new time of day",
    NoticeKind.AGENDA_LATE: "Your agenda will not end in time",
    NoticeKind.AGENDA_CUT: "A job of your agenda was stopped early",
    NoticeKind.STORAGE_NEARLY_FULL: "Your storage is nearly full",
    NoticeKind.JOB_SUCCEEDED: "Your job has succeeded",
    NoticeKind.JOB_FAILED: "Your job has failed",
    NoticeKind.JOB_HELD: "Your job is held",
    NoticeKind.REPORT_WRITTEN: "The report of your job is written",
    NoticeKind.REPORT_REFUSED: "The report of your job is not written",
    NoticeKind.TEST: "This is a test",
}
PAGES = {"job": "/jobs", "lease": "/leases", "agenda": "/agendas"}  # by the prefix of an id
LABELS = {"hold_start": "from", "hold_end": "node is free at", "usable_end": "jobs stop at"}


@dataclass(frozen=True)
class Letter:
    """A subject line and the text below it."""

    subject: str
    text: str


def write(notices: Sequence[Notice], *, name: str, zone: ZoneInfo, url: str) -> Letter:
    """Write one notice, or all of a day, to `name`; `url` is the address of Trainyard."""
    subject = title(notices[0].kind) if len(notices) == 1 else f"{len(notices)} notices from today"
    parts = [f"Hello {name},"]
    for notice in notices:
        if len(notices) > 1:
            parts.append(f"* {moment(notice.created_at, zone)}: {title(notice.kind)}")
        parts.append(body(notice, zone))
        if url and (page := page_of(notice)):
            parts.append(f"  {url}{page}")
    closing = f"Times are in the time zone {zone.key}."
    if url:
        closing += f" Choose your notices and how they reach you: {url}/account"
    return Letter(f"Trainyard: {subject}", "\n\n".join([*parts, closing]) + "\n")


def title(kind: str) -> str:
    """Return the subject of a kind of notice, in a few words."""
    return TITLES.get(kind) or kind.replace("_", " ").capitalize()


def page_of(notice: Notice) -> str:
    """Return the path of the page about the subject of a notice; empty if there is none."""
    if notice.kind == NoticeKind.REPORT_WRITTEN:
        return f"/reports/{notice.subject}"
    place = PAGES.get(notice.subject.partition("_")[0])
    return f"{place}/{notice.subject}" if place else ""


def body(notice: Notice, zone: ZoneInfo) -> str:
    """Return the sentence, then its facts one a line."""
    facts = dict(notice.facts)
    lines = [str(facts.pop("message"))]
    rows = facts.pop("rows", [])
    lines += [
        f"  {LABELS.get(key, key.replace('_', ' '))}: {_value(facts[key], zone)}"
        for key in facts
        if facts[key] not in (None, "")
    ]
    if isinstance(rows, list):
        lines += [f"  - {', '.join(_value(part, zone) for part in row)}" for row in rows]
    return "\n".join(lines)


def moment(at: datetime, zone: ZoneInfo) -> str:
    """Format as `Tue 24 Nov 2026, 15:00 EST (UTC-05:00)`."""
    local = at.astimezone(zone)
    offset = local.strftime("%z")
    return f"{local:%a %d %b %Y, %H:%M} {local:%Z} (UTC{offset[:3]}:{offset[3:5]})"


def _value(value: object, zone: ZoneInfo) -> str:
    if isinstance(value, str) and "T" in value:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return value
        return moment(at, zone) if at.tzinfo else value
    return str(value)
