"""/v1/admin/network: the hosts that programs may reach, by node class and by lab."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.web import audit
from api.web.auth import AdminOnly, StaffOnly
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import ProcessDep
from api.web.schemas import Body, View
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.spec.hosts import GROUPS, MAX_RULES, host_rules
from core.tables.kinds import ListOwner
from core.tables.network import NetworkList
from core.tables.nodes import NodeClass
from core.tables.people import Lab

router = APIRouter(prefix="/v1/admin/network", tags=["administration"])


def require_hosts(entries: Sequence[str]) -> Sequence[str]:
    """Raise ValueError if an entry is neither a host nor a group, or if there are too many."""
    if len(host_rules(entries)) > MAX_RULES:
        raise ValueError(f"these are more than {MAX_RULES} hosts; use wildcards, such as *.hf.co")
    return entries


class HostList(Body):
    """Hosts that programs may reach, instead of those listed before; an empty list: none."""

    hosts: Annotated[
        list[Annotated[str, Field(max_length=300)]],
        Field(max_length=MAX_RULES),
        AfterValidator(require_hosts),
    ]
    """Hosts by name, as `pypi.org`, `pypi.org:8443`, `*.hf.co` or, in the site's own network,
    `private:pypi.lab.example`; or groups: `pypi`, `huggingface`."""


class NetworkListView(View):
    """Hosts that programs of a node class, or of a lab, may reach."""

    node_class: str | None
    lab: str | None
    """Name of the lab, if it is a lab's list."""
    hosts: list[str]
    """Hosts and groups, as they were listed."""


class NetworkView(View):
    """All lists, and the hosts of each group."""

    lists: list[NetworkListView]
    groups: dict[str, list[str]]


@router.get("", summary="List the hosts that programs may reach")
def get_network(person: StaffOnly, process: ProcessDep) -> NetworkView:
    """Return all lists. What no list names is not reached by any program."""
    with process.read() as session:
        labs = {lab_id: name for lab_id, name in session.execute(select(Lab.id, Lab.name))}
        rows = session.scalars(select(NetworkList)).all()
        lists = [
            NetworkListView(
                node_class=None if row.owner is ListOwner.LAB else row.owner_id,
                lab=labs.get(row.owner_id) if row.owner is ListOwner.LAB else None,
                hosts=row.hosts,
            )
            for row in rows
        ]
    return NetworkView(
        lists=sorted(lists, key=lambda each: (each.lab or "", each.node_class or "")),
        groups={name: list(hosts) for name, hosts in GROUPS.items()},
    )


@router.put("/node-classes/{name}", summary="Set the hosts of a node class")
def put_class_network(
    name: PlainText, body: HostList, person: AdminOnly, process: ProcessDep
) -> NetworkListView:
    """Set the hosts that programs on nodes of a class may reach.

    A host that is removed is lost at the next heartbeat of the nodes, by running programs too.
    """
    return process.transact(_set_of_class, name, body.hosts, person)


@router.put("/labs/{name}", summary="Set the hosts of a lab")
def put_lab_network(
    name: PlainText, body: HostList, person: AdminOnly, process: ProcessDep
) -> NetworkListView:
    """Set the hosts that programs of a lab's members may reach, on nodes of every class.

    A host that is removed is lost at the next heartbeat of the nodes, by running programs too.
    """
    return process.transact(_set_of_lab, name, body.hosts, person)


def _set_of_class(
    session: Session, bells: Bells, name: str, hosts: list[str], person: Person
) -> NetworkListView:
    if session.get(NodeClass, name) is None:
        raise NotFound(f"There is no node class {name!r}.")
    _set(session, ListOwner.NODE_CLASS, name, hosts)
    audit.record(session, person.id, "node_class.network", name, now=utc_now(), hosts=hosts)
    return NetworkListView(node_class=name, lab=None, hosts=hosts)


def _set_of_lab(
    session: Session, bells: Bells, name: str, hosts: list[str], person: Person
) -> NetworkListView:
    lab = session.scalar(select(Lab).where(Lab.name == name))
    if lab is None:
        raise NotFound(f"There is no lab {name!r}.")
    _set(session, ListOwner.LAB, lab.id, hosts)
    audit.record(session, person.id, "lab.network", name, now=utc_now(), hosts=hosts)
    return NetworkListView(node_class=None, lab=name, hosts=hosts)


def _set(session: Session, owner: ListOwner, owner_id: str, hosts: list[str]) -> None:
    known = session.get(NetworkList, (owner, owner_id), with_for_update=True)
    if known is not None and not hosts:
        session.delete(known)
    elif known is not None:
        known.hosts = hosts
    elif hosts:
        session.add(NetworkList(owner=owner, owner_id=owner_id, hosts=hosts))
