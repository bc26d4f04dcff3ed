"""Policy check for walk-ins, made in the transaction that takes the node.

A refusal is remembered for half a minute, so that a refused job does not lock the database once a
second. Without an active policy every walk-in is allowed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from core.leases.active_policies import active_policies
from core.leases.leases import PLAIN, Terms
from core.leases.situation import Judge, lock_user
from core.policy.verdict import LeaseFact, RequestKind
from core.tables.nodes import Node
from scheduler.queue.sentences import WaitingReason

ASK_AGAIN = timedelta(seconds=30)


class WalkInRefused(Exception):
    """The policy does not let this job walk in now."""

    def __init__(self, reason: WaitingReason) -> None:
        super().__init__(reason.message)
        self.reason = reason


@dataclass
class Refusals:
    """Recent refusals by job id, each with the time until which the job is not tried again."""

    _told: dict[str, tuple[datetime, WaitingReason]] = field(default_factory=dict)

    def remember(self, job_id: str, reason: WaitingReason, now: datetime) -> None:
        """Record a refusal, so that this job is not tried again for ASK_AGAIN."""
        self._told[job_id] = (now + ASK_AGAIN, reason)

    def of(self, job_id: str, now: datetime) -> WaitingReason | None:
        """Return the reason why a job is not tried now; None if it may be tried."""
        until, reason = self._told.get(job_id, (now, None))
        if now < until:
            return reason
        self._told.pop(job_id, None)
        return None


def lock_owner(session: Session, user_id: str) -> None:
    """Lock a user, if any policy is active, so that no other transaction takes hours for them.

    Call it before the job and its nodes are locked.
    """
    if active_policies(session):
        lock_user(session, user_id)


def granted(
    session: Session,
    user_id: str,
    nodes: Sequence[Node],
    *,
    sizes: Sequence[int | None],
    end: datetime,
    now: datetime,
    replaces: Collection[str] = (),
) -> list[Terms]:
    """Return the terms of walk-ins from now to `end`, one for each of `nodes`, on as many of its
    slots as `sizes` says; None stands for the whole node.

    The leases with ids in `replaces` are judged as if they were over. Raises
    WalkInRefused if the policy does not allow a walk-in on one of the nodes.
    """
    if not active_policies(session):
        return [PLAIN] * len(nodes)
    judge = Judge(session, user_id, now=now, lock=True)
    terms: list[Terms] = []
    also: list[LeaseFact] = []
    for node, num_slots in zip(nodes, sizes, strict=True):
        verdict = judge.verdict(
            node,
            now,
            end,
            kind=RequestKind.WALK_IN,
            num_slots=num_slots,
            replaces=replaces,
            also=tuple(also),
            offers=1,
        )
        if not verdict.ok:
            told = " ".join(reason.message for reason in verdict.reasons)
            start = verdict.next_starts[0] if verdict.next_starts else None
            message = f"The booking rules do not let it start on {node.name} now. {told}"
            raise WalkInRefused(WaitingReason(verdict.reasons[0].code, message, start))
        is_charged = judge.policy_for_node(node).walk_in.charged
        terms.append(replace(judge.terms(node, verdict), is_charged=is_charged))
        also.append(judge.as_fact(node, now, end, kind="walk_in", num_slots=num_slots))
    return terms
