"""Short ways to ask evaluate() things under the course's policy."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from core.policy.document import Policy, load
from core.policy.evaluate import evaluate
from core.policy.verdict import (
    BookingRequest,
    Grant,
    LeaseFact,
    Member,
    NodeRef,
    RequestKind,
    Situation,
    Span,
    Verdict,
)
from core.states import LeaseState

ROOT = Path(__file__).parents[3]
COURSE_TEXT = (ROOT / "examples" / "policies" / "course.yaml").read_text(encoding="utf-8")
COURSE = load(COURSE_TEXT)
NEW_YORK = ZoneInfo("America/New_York")
LONG = NodeRef("node_long", "307G3Q3", "a100x4")
SECOND = NodeRef("node_second", "JOBG3Q3", "a100x4")
THIRD = NodeRef("node_third", "P3-GPU-009", "v100x4")
SINGLE = NodeRef("node_single", "gigaio-compute-02", "a100x1")
OTHER_SINGLE = NodeRef("node_other_single", "gigaio-compute-03", "a100x1")
ANN = Member(
    "user_ann",
    lab_ids=frozenset({"lab_1"}),
    groups=frozenset({"course-s25"}),
    attributes={"netid_parity": "even"},
)
NOW = datetime(2025, 2, 20, 12, 0, tzinfo=NEW_YORK)
HOUR = timedelta(hours=1)


def local(text: str, zone: ZoneInfo = NEW_YORK) -> datetime:
    """`02-21 15:00` of 2025 in New York, or `2025-11-02 01:00` of any year."""
    full = text if text.count("-") == 2 else f"2025-{text}"
    return datetime.fromisoformat(full).replace(tzinfo=zone)


def policy(*changes: tuple[str, str], text: str = COURSE_TEXT) -> Policy:
    """The course's policy with some of its text replaced."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return load(text)


def lease(
    node: NodeRef,
    start: str | datetime,
    hours: int,
    *,
    state: LeaseState = LeaseState.BOOKED,
    counts: bool = True,
    user: str = ANN.id,
    kind: str = "booked",
) -> LeaseFact:
    """A lease that is there already; its id says where and when it is."""
    begins = local(start) if isinstance(start, str) else start
    return LeaseFact(
        id=f"lease_{user}_{node.name}_{begins:%m%d%H%M}",
        user_id=user,
        lab_id="lab_1",
        node=node,
        start=begins.astimezone(UTC),
        end=begins.astimezone(UTC) + hours * HOUR,
        kind=kind,
        state=state,
        counts=counts,
        created_at=NOW,
    )


def ask(
    node: NodeRef,
    start: str | datetime,
    hours: float,
    *own: LeaseFact,
    rules: Policy = COURSE,
    now: datetime = NOW,
    member: Member = ANN,
    kind: RequestKind = RequestKind.BOOKING,
    replaces: tuple[LeaseFact, ...] = (),
    lab: tuple[LeaseFact, ...] = (),
    holds: tuple[Span, ...] = (),
    node_available: bool = True,
    cancels_today: int = 0,
    no_shows: tuple[datetime, ...] = (),
    exceptions: tuple[Grant, ...] = (),
    offers: int = 3,
) -> Verdict:
    """The verdict on `hours` from `start` (New York) on `node`; own leases hold their nodes too."""
    begins = (local(start) if isinstance(start, str) else start).astimezone(UTC)
    request = BookingRequest(
        replace(member, exceptions=exceptions),
        node,
        begins,
        begins + hours * HOUR,
        kind,
        frozenset(fact.id for fact in replaces),
    )
    mine = [Span(f.start, f.end, f.id) for f in own if f.node == node and f.state != "ended"]
    situation = Situation(
        now=now,
        own=own,
        lab=lab,
        holds=(*holds, *mine),
        node_available=node_available,
        cancels_today=cancels_today,
        no_shows=no_shows,
    )
    return evaluate(request, situation, rules, offers=offers)


def codes(verdict: Verdict) -> list[str]:
    """Reason codes of a verdict that is well formed."""
    assert verdict.ok is (not verdict.reasons)
    for reason in (*verdict.reasons, *verdict.warnings):
        assert reason.message.endswith("."), reason.message
        assert reason.param
    return [reason.code for reason in verdict.reasons]


def starts(verdict: Verdict, zone: ZoneInfo = NEW_YORK) -> list[str]:
    """The offered starts, as the clock shows them."""
    return [f"{moment.astimezone(zone):%m-%d %H:%M}" for moment in verdict.next_starts]


def left(verdict: Verdict) -> list[str]:
    """What is left, in words."""
    return [f"{item.alternative}: {item.text}" for item in verdict.left]


def others(fact: LeaseFact, **changes: object) -> LeaseFact:
    """The same lease, changed."""
    return replace(fact, **changes)  # type: ignore[arg-type]
