"""/v1/admin/node-classes/{name}/fabric: the network between the nodes of a class."""

from fastapi import APIRouter
from sqlalchemy.orm import Session

from api.nodes.node_classes import judge_together
from api.web import audit
from api.web.auth import AdminOnly, StaffOnly
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import ProcessDep
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.tables.nodes import NodeClass
from core.wire.messages import Fabric

router = APIRouter(prefix="/v1/admin/node-classes", tags=["administration"])


@router.get("/{name}/fabric", summary="Get the network of a node class")
def get_fabric(name: PlainText, person: StaffOnly, process: ProcessDep) -> Fabric:
    """Return the network between the nodes of a class."""
    with process.read() as session:
        return Fabric.model_validate(_known(session, name).fabric)


@router.put("/{name}/fabric", summary="Set the network of a node class")
def put_fabric(name: PlainText, fabric: Fabric, person: AdminOnly, process: ProcessDep) -> Fabric:
    """Set the network between the nodes of a class, for attempts that start from now on.

    `programs: host` shows the nodes' own network, and their RDMA devices, to users' programs that
    run on several nodes: docs/security.md says what that opens.
    """
    return process.transact(_set, name, fabric, person)


def _set(session: Session, bells: Bells, name: str, fabric: Fabric, person: Person) -> Fabric:
    known = _known(session, name, lock=True)
    wanted = fabric.model_dump(mode="json")
    if known.fabric != wanted:
        known.fabric = wanted
        judge_together(session, known)
        audit.record(session, person.id, "node_class.fabric", name, now=utc_now(), **wanted)
        bells.scheduler = True
    return fabric


def _known(session: Session, name: str, *, lock: bool = False) -> NodeClass:
    known = session.get(NodeClass, name, with_for_update={"key_share": True} if lock else None)
    if known is None:
        raise NotFound(f"There is no node class {name!r}.")
    return known
