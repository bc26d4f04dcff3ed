"""/v1/node/secrets: the secrets of a script's attempt, for its own nodes only."""

from typing import Annotated

from fastapi import APIRouter, Path

from api.scripts import sealed_secrets
from api.web.auth import NodeOnly
from api.web.process import ProcessDep
from api.web.text_types import PlainText
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
        return sealed_secrets.secrets_of_attempt(session, job_id, epoch, node, process)
