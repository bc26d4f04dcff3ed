"""Sealed secrets of people."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.jobs.job_views import require_read
from api.scripts.schemas import SecretView
from api.scripts.secret_box import SecretBox
from api.web import audit
from api.web.bells import Bells
from api.web.clean_text import clean_text
from api.web.identity import NodeIdentity, Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.base.errors import NotFound, TooMany
from core.leases.situation import lock_user
from core.spec.spec import ScriptJobSpec
from core.states import LIVE_ATTEMPT
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.scripts import Secret
from core.wire.messages import Secrets

MOST_SECRETS = 200


def set_secret(
    session: Session, _: Bells, name: str, person: Person, *, sealed: bytes, now: datetime
) -> SecretView:
    """Insert a secret or change its value. Raises TooMany."""
    lock_user(session, person.id)
    secret = session.get(Secret, (person.id, name))
    if secret is None:
        known = session.scalars(select(Secret.name).where(Secret.user_id == person.id)).all()
        if len(known) >= MOST_SECRETS:
            raise TooMany(
                f"You have {len(known)} secrets and the limit is {MOST_SECRETS}. Delete "
                "one that you no longer need.",
                code="too_many_secrets",
            )
        secret = Secret(user_id=person.id, name=name, sealed=sealed, created_at=now, updated_at=now)
        session.add(secret)
    secret.sealed, secret.updated_at = sealed, now
    session.flush()
    audit.record(session, person.id, "secret.set", name, now=now)
    return SecretView.model_validate(secret)


def list_secrets(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[SecretView]:
    """Return a page of a person's secrets by name, without values."""
    query = select(Secret).where(Secret.user_id == person.id)
    rows = page(session, query, Secret.name, after=after, limit=limit, rising=True)
    views = [SecretView.model_validate(secret) for (secret,) in rows]
    return Page[SecretView](data=views, has_more=rows.has_more)


def delete_secret(session: Session, _: Bells, name: str, person: Person, *, now: datetime) -> None:
    """Delete a secret. Raises NotFound."""
    secret = session.get(Secret, (person.id, name))
    if secret is None:
        raise NotFound(f"You have no secret {name!r}.")
    session.delete(secret)
    audit.record(session, person.id, "secret.delete", name, now=now)


def secrets_of_attempt(
    session: Session,
    job_id: str,
    epoch: int,
    node: NodeIdentity,
    process: Process,
) -> Secrets:
    """Return the opened secrets of a live attempt with a part on this node. Raises NotFound."""
    job = session.scalars(
        select(Job)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(
            Job.id == clean_text(job_id),
            Attempt.epoch == epoch,
            Attempt.id.in_(
                select(AttemptPart.attempt_id).where(
                    AttemptPart.node_id == node.id, AttemptPart.ended_at.is_(None)
                )
            ),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
    ).one_or_none()
    if job is None:
        raise NotFound(f"{node.name} has no live attempt {epoch} of {job_id[:60]!r}.")
    spec, _ = require_read(job)
    wanted = spec.script.secrets if isinstance(spec, ScriptJobSpec) else ()
    sealed = {name: session.get(Secret, (job.user_id, name)) for name in wanted}
    for name, secret in sealed.items():
        if secret is None:
            raise NotFound(f"its owner has no secret {name} any more")
    box = SecretBox(process.settings.secrets_key_file)
    return Secrets(values={name: box.open(one.sealed) for name, one in sealed.items() if one})
