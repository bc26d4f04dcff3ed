"""/v1/node: messages between nodes and the platform (`core.wire.messages`).

Every message about an attempt is fenced (`api.nodes.fencing`). Heartbeats:
`api.nodes.routes_heartbeat`; metrics: `api.nodes.routes_metrics`; output: `api.nodes.routes_logs`.
"""

from fastapi import APIRouter

from api.nodes import proofs, reports
from api.web.auth import NodeOnly, Public
from api.web.process import ProcessDep
from core.base.clock import utc_now
from core.wire.messages import (
    ArtifactReport,
    CheckpointReport,
    Enrolment,
    NewIdentity,
)
from strategies.plan.trust.proof import Proof

router = APIRouter(prefix="/v1/node", tags=["node protocol"])


@router.post("/enrol", status_code=201, dependencies=[Public], summary="Join")
def enrol(message: Enrolment, process: ProcessDep) -> NewIdentity:
    """Trade a single-use token for the identity of a node."""
    return process.transact(reports.enrol, message)


@router.post(
    "/checkpoints",
    status_code=204,
    summary="Report an uploaded checkpoint",
)
def take_checkpoint(message: CheckpointReport, node: NodeOnly, process: ProcessDep) -> None:
    """Register a checkpoint whose files have all been uploaded, by every node that wrote some."""
    now = utc_now()
    return process.transact(reports.add_checkpoint, message, node, now=now)


@router.post("/proofs", status_code=204, summary="Send a proof of the node")
def take_proof(message: Proof, node: NodeOnly, process: ProcessDep) -> None:
    """Store the result of `trainyard prove`; one that was sent before is not stored again."""
    process.transact(proofs.take, message, node)


@router.post("/artifacts", status_code=204, summary="Report an uploaded artifact")
def take_artifact(message: ArtifactReport, node: NodeOnly, process: ProcessDep) -> None:
    """Register a file that an attempt left behind and that has been uploaded."""
    process.transact(reports.add_artifact, message, node)
