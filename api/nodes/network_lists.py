"""Lists of the hosts that programs may reach: those of their node class and of their owner's labs.

A host that either of them lists is granted. What a job asked for is narrowed to what is granted
now, with every answer to its node.
"""

from collections.abc import Sequence

from sqlalchemy import and_, bindparam, or_, select
from sqlalchemy.orm import Session

from core.spec.hosts import HostRule, host_rules, hosts_in, narrowed
from core.spec.spec import AnyJobSpec, ProgramJobSpec, ScriptJobSpec
from core.states import NodeState
from core.tables.jobs import Job
from core.tables.kinds import ListOwner
from core.tables.network import NetworkList
from core.tables.nodes import Node
from core.tables.people import Membership
from core.wire.messages import Network

LISTS = (  # built once: every heartbeat of a node with programs asks it
    select(NetworkList.hosts)
    .outerjoin(
        Membership,
        and_(
            NetworkList.owner == ListOwner.LAB,
            Membership.lab_id == NetworkList.owner_id,
            Membership.user_id == bindparam("user_id"),
        ),
    )
    .where(
        or_(
            and_(
                NetworkList.owner == ListOwner.NODE_CLASS,
                NetworkList.owner_id == bindparam("node_class"),
            ),
            Membership.user_id.is_not(None),
        )
    )
    .order_by(NetworkList.owner.desc(), NetworkList.owner_id)
)


def granted_hosts(session: Session, *, node_class: str, user_id: str) -> Sequence[HostRule]:
    """Return what programs of a person may reach on nodes of a class, the class's hosts first."""
    lists = session.scalars(LISTS, {"node_class": node_class, "user_id": user_id})
    return host_rules(entry for hosts in lists for entry in hosts)


def ceilings_of(session: Session, node_class: str) -> Sequence[Sequence[HostRule] | None]:
    """Return, for each node of a class, the most that programs may reach from it by its own
    setting; None: it sets no limit."""
    inventories = session.scalars(
        select(Node.inventory).where(Node.class_name == node_class, Node.state != NodeState.RETIRED)
    )
    told = [inventory.get("egress") or "" for inventory in inventories]
    return [None if not text else hosts_in(text) for text in told]


def network_of(session: Session, job: Job, spec: AnyJobSpec, node: Node) -> Network | None:
    """Return what an attempt may reach now; None if it needs no network.

    An older worker, which would not read the order, is told nothing: its programs reach nothing.
    """
    if not isinstance(spec, ProgramJobSpec) or node.inventory.get("egress") is None:
        return None
    program = spec.script if isinstance(spec, ScriptJobSpec) else spec.workbench
    if not spec.network and program.requirements is None:
        return None
    granted = granted_hosts(session, node_class=node.class_name, user_id=job.user_id)
    if not spec.network and not granted:
        return None
    reach = [str(rule) for rule in narrowed(host_rules(spec.network), granted)]
    return Network(reach=reach if spec.network else None, granted=[str(rule) for rule in granted])
