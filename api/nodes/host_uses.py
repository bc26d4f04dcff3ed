"""Use of hosts by programs, as nodes report it: kept with the attempt, and in the audit log.

A node counts a bounded number of hosts of an attempt each by its name, so that no program fills the
log: it gets a row when a host is first reached or refused, and one at the end of the attempt.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from api.web import audit
from api.web.clean_text import cleaned
from core.base.words import size_text
from core.states import Phase
from core.tables.base import Document
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.nodes import Node
from core.transitions import note
from core.wire.messages import HostUse, ObservedAttempt

TOLD = 8  # hosts that an event names


def take_hosts(
    session: Session,
    node: Node,
    job: Job,
    attempt: Attempt,
    part: AttemptPart,
    seen: ObservedAttempt,
    *,
    now: datetime,
) -> bool:
    """Keep the uses that a node reports of an attempt; return True if they have changed."""
    hosts = [cleaned(use.model_dump(mode="json")) for use in seen.hosts]
    is_last = seen.phase is Phase.EXITED and part.exit is None
    if not hosts or (hosts == part.hosts and not is_last):
        return False
    before = {use["host"]: use for use in part.hosts or []}
    part.hosts = hosts
    where = {"epoch": attempt.epoch, "node": node.name}
    news = {
        "reached": _newly("connections", hosts, before),
        "refused": _newly("refused", hosts, before),
    }
    if any(news.values()):
        audit.record(session, job.user_id, "job.network", job.id, now=now, **where, **news)
    if is_last:
        audit.record(
            session, job.user_id, "job.network_total", job.id, now=now, **where, hosts=hosts
        )
        note(
            session,
            job.id,
            "network_used",
            now=now,
            message=sentence(seen.hosts, node.name),
            actor=node.id,
            epoch=attempt.epoch,
        )
    return True


def _newly(count: str, hosts: Sequence[Document], before: Mapping[str, Document]) -> Sequence[str]:
    return [
        use["host"] for use in hosts if use[count] and not before.get(use["host"], {}).get(count)
    ]


def sentence(uses: Sequence[HostUse], node: str) -> str:
    """Return what an attempt has reached from a node, and what it was refused."""
    reached = [
        f"{use.host} ({use.connections:,} x, {size_text(use.sent_bytes)} sent, "
        f"{size_text(use.received_bytes)} received)"
        for use in uses
        if use.connections
    ]
    refused = [f"{use.host} ({use.refused:,} x)" for use in uses if use.refused]
    told = f"The program reached from {node}: {_listed(reached)}."
    return f"{told} Refused: {_listed(refused)}." if refused else told


def _listed(texts: Sequence[str]) -> str:
    if len(texts) <= TOLD:
        return ", ".join(texts) or "no host"
    return f"{', '.join(texts[:TOLD])} and {len(texts) - TOLD} more"
