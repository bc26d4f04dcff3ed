"""Identity of this node: enrolled once with a single-use token, stored in identity.json."""

import threading

import structlog
from pydantic import BaseModel, ConfigDict

from core.wire.messages import Enrolment, Inventory
from strategies.plan.durable_files import PRIVATE, json_bytes, write_atomically
from worker.node.api_client import ApiClient, RequestRefused, Unreachable
from worker.node.attempts import NodeFolder, read_model

RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)

log = structlog.get_logger()


class NotEnrolled(Exception):
    """Failure to obtain an identity for this node; the message says what to do."""


class IdentityFile(BaseModel):
    """Content of identity.json.

    Its token authenticates this node, so only its owner may read it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_id: str
    name: str
    node_token: str


def identify(
    folder: NodeFolder,
    client: ApiClient,
    *,
    token: str,
    inventory: Inventory,
    stop: threading.Event,
) -> IdentityFile:
    """Return the identity in the data directory, else a new one for the enrolment token.

    Waits while the API cannot be reached. Raises NotEnrolled if it refuses, or `stop` is set.
    """
    known = read_model(folder.identity, IdentityFile)
    if known is not None:
        return known
    if not token:
        raise NotEnrolled(
            f"This node is not enrolled: {folder.identity} does not exist. Ask an administrator "
            "for a single-use token (trainyard admin enrol NAME) and start the worker with "
            "--enrol TOKEN or TRAINYARD_ENROL_TOKEN."
        )
    identity = _enrol(client, Enrolment(token=token, inventory=inventory), stop)
    write_atomically(folder.identity, json_bytes(identity), mode=PRIVATE)
    log.info("enrolled", node=identity.name, node_id=identity.node_id)
    return identity


def _enrol(client: ApiClient, enrolment: Enrolment, stop: threading.Event) -> IdentityFile:
    for attempt in range(1_000_000):
        try:
            enrolled = client.enrol(enrolment)
        except RequestRefused as refusal:
            raise NotEnrolled(
                f"The API refused the enrolment token ({refusal.detail or refusal.code}). A token "
                "works once and for 15 minutes; ask an administrator for a new one."
            ) from refusal
        except Unreachable as error:
            pause_s = RETRY_S[min(attempt, len(RETRY_S) - 1)]
            log.warning("api_unreachable", error=str(error), retry_in_s=pause_s)
            if stop.wait(pause_s):
                break
            continue
        return IdentityFile(
            node_id=enrolled.node_id, name=enrolled.name, node_token=enrolled.node_token
        )
    raise NotEnrolled("The worker was stopped before the API could be reached.")
