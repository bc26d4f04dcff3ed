"""/v1/secrets: values for one's own scripts. They can be set, and never read back."""

from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy import select

from api.scripts import sealed_secrets
from api.scripts.schemas import SecretValue, SecretView
from api.scripts.secret_box import SecretBox
from api.web.auth import SignedIn
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit
from core.base.clock import utc_now
from core.spec.script import VARIABLE
from core.tables.scripts import Secret

router = APIRouter(prefix="/v1/secrets", tags=["scripts"])

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
    return process.transact(sealed_secrets.set_secret, name, person, sealed=sealed, now=now)


@router.get("", summary="List secrets")
def list_secrets(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[SecretView]:
    """Return your secrets without their values, sorted by name."""
    with process.read() as session:
        return sealed_secrets.list_secrets(session, person, limit=limit, after=after)


@router.delete("/{name}", status_code=204, summary="Delete a secret")
def delete_secret(name: Name, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a secret. Jobs that name it can't start any more."""
    now = utc_now()
    process.transact(sealed_secrets.delete_secret, name, person, now=now)
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
