"""Whether the policy lets a job walk in: asked in the transaction that takes the node.

A refusal is remembered for half a minute, so that a job that may not start is not tried, and the
database not locked, once a second. Where no policy is applied, walk-ins are free.
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
from scheduler.queue.sentences import Reason

ASK_AGAIN = timedelta(seconds=30)


class Refused(Exception):
    """The policy does not let this job walk in now."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


@dataclass
class Refusals:
    """What jobs were told, and until when they are not tried again."""

    _told: dict[str, tuple[datetime, Reason]] = field(default_factory=dict)

    def remember(self, job_id: str, reason: Reason, now: datetime) -> None:
        """Do not try this job again for a while."""
        self._told[job_id] = (now + ASK_AGAIN, reason)

    def of(self, job_id: str, now: datetime) -> Reason | None:
        """Why it is not tried now; None if it is."""
        until, reason = self._told.get(job_id, (now, None))
        if now < until:
            return reason
        self._told.pop(job_id, None)
        return None


def lock_owner(session: Session, user_id: str) -> None:
    """Before the job and its nodes: nobody else takes hours for this person meanwhile."""
    if active_policies(session):
        lock_user(session, user_id)


def granted(
    session: Session,
    user_id: str,
    nodes: Sequence[Node],
    *,
    end: datetime,
    now: datetime,
    replaces: Collection[str] = (),
) -> list[Terms]:
    """The terms of walk-ins on all of `nodes` from now to `end`, if the leases of `replaces` were
    over. Raises Refused."""
    if not active_policies(session):
        return [PLAIN] * len(nodes)
    judge = Judge(session, user_id, now=now, lock=True)
    terms: list[Terms] = []
    also: list[LeaseFact] = []
    for node in nodes:
        verdict = judge.verdict(
            node,
            now,
            end,
            kind=RequestKind.WALK_IN,
            replaces=replaces,
            also=tuple(also),
            offers=1,
        )
        if not verdict.ok:
            told = " ".join(reason.message for reason in verdict.reasons)
            start = verdict.next_starts[0] if verdict.next_starts else None
            message = f"The booking rules do not let it start on {node.name} now. {told}"
            raise Refused(Reason(verdict.reasons[0].code, message, start))
        is_charged = judge.policy_for_node(node).walk_in.charged
        terms.append(replace(judge.terms(node, verdict), is_charged=is_charged))
        also.append(judge.as_fact(node, now, end, kind="walk_in"))
    return terms
