"""/v1/node/secrets: the secrets of a script's attempt, for its own nodes only."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from api.jobs.job_views import require_read
from api.scripts.secret_box import SecretBox
from api.web.auth import NodeOnly
from api.web.clean_text import clean_text
from api.web.process import ProcessDep
from api.web.text_types import PlainText
from core.base.errors import NotFound
from core.spec.spec import ScriptJobSpec
from core.states import LIVE_ATTEMPT
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.scripts import Secret
from core.wire.messages import Secrets

router = APIRouter(prefix="/v1/node/secrets", tags=["node protocol"])


@router.get("/{job_id}/{epoch}", summary="Get the secrets of an attempt")
def get_secrets(
    job_id: PlainText,
    epoch: Annotated[int, Path(ge=1, le=2**31 - 1)],
    node: NodeOnly,
    process: ProcessDep,
) -> Secrets:
    """Return the secrets that the job's script names, for a live attempt with a part on this node.

    Refused with 404 for any other attempt, and if the owner has deleted one of the secrets.
    """
    with process.read() as session:
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
