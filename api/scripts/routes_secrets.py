"""/v1/secrets: values for one's own scripts. They can be set, and never read back."""

from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy import select

from api.scripts.schemas import SecretValue, SecretView
from api.scripts.secret_box import SecretBox
from api.web import audit
from api.web.auth import SignedIn
from api.web.paging import page
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit
from core.base.clock import utc_now
from core.base.errors import NotFound, TooMany
from core.leases.situation import lock_user
from core.spec.script import VARIABLE
from core.tables.scripts import Secret

router = APIRouter(prefix="/v1/secrets", tags=["scripts"])

MOST_SECRETS = 200
Name = Annotated[
    str,
    Path(
        pattern=VARIABLE,
        description="Name of the secret, and of the environment variable that holds it "
        "in the script.",
    ),
]


@router.put("/{name}", summary="Set a secret")
def set_secret(
    name: Name, wanted: SecretValue, person: SignedIn, process: ProcessDep
) -> SecretView:
    """Make a secret or change its value. Scripts that name it get its value when they start."""
    sealed = _box(process).seal(wanted.value)
    now = utc_now()
    with process.write() as (session, _):
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
            secret = Secret(
                user_id=person.id, name=name, sealed=sealed, created_at=now, updated_at=now
            )
            session.add(secret)
        secret.sealed, secret.updated_at = sealed, now
        session.flush()
        audit.record(session, person.id, "secret.set", name, now=now)
        return SecretView.model_validate(secret)


@router.get("", summary="List secrets")
def list_secrets(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[SecretView]:
    """Return your secrets without their values, sorted by name."""
    query = select(Secret).where(Secret.user_id == person.id)
    with process.read() as session:
        rows = page(session, query, Secret.name, after=after, limit=limit, rising=True)
    views = [SecretView.model_validate(secret) for (secret,) in rows]
    return Page[SecretView](data=views, has_more=rows.has_more)


@router.delete("/{name}", status_code=204, summary="Delete a secret")
def delete_secret(name: Name, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a secret. Jobs that name it can't start any more."""
    now = utc_now()
    with process.write() as (session, _):
        secret = session.get(Secret, (person.id, name))
        if secret is None:
            raise NotFound(f"You have no secret {name!r}.")
        session.delete(secret)
        audit.record(session, person.id, "secret.delete", name, now=now)
    return Response(status_code=204)


def _box(process: Process) -> SecretBox:
    """Return the box that seals; make its first key, but only while nothing is sealed."""
    box = SecretBox(process.settings.secrets_key_file)
    if not box.path.exists():
        with process.read() as session:
            is_first = session.scalar(select(Secret.name).limit(1)) is None
        if is_first:
            box.make_first_key()
    return box
