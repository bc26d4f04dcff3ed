"""Audit log: its rows, with the names of people and nodes."""

from collections.abc import Mapping

from sqlalchemy import CompoundSelect, literal, select, union_all
from sqlalchemy.orm import Session

from api.admin.schemas_audit import AuditView
from api.web.paging import page
from api.web.schemas import AskedMoment, Page
from core.tables.admin import AuditEntry
from core.tables.nodes import Node
from core.tables.people import User


def list_audit(
    session: Session,
    actor: str | None,
    action: str | None,
    subject: str | None,
    since: AskedMoment | None,
    until: AskedMoment | None,
    *,
    limit: int,
    after: int | None,
) -> Page[AuditView]:
    """Return a page of the audit log, newest first."""
    query = select(AuditEntry)
    if actor is not None:
        query = query.where(AuditEntry.actor.in_(_ids_of(actor)))
    if action is not None:
        exact = AuditEntry.action == action
        begins = AuditEntry.action.startswith(action, autoescape=True)
        query = query.where(begins if action.endswith(".") else exact)
    if subject is not None:
        query = query.where(AuditEntry.subject.in_(_ids_of(subject)))
    if since is not None:
        query = query.where(AuditEntry.at >= since)
    if until is not None:
        query = query.where(AuditEntry.at < until)
    rows = page(session, query, AuditEntry.id, after=after, limit=limit)
    names = _names_of(session, {name for (row,) in rows for name in (row.actor, row.subject)})
    views = [_view(row, names) for (row,) in rows]
    return Page[AuditView](data=views, has_more=rows.has_more)


def _ids_of(named: str) -> CompoundSelect[str]:
    """Select the ids that rows may have for `named`: itself, and a person or node of that name."""
    return union_all(
        select(literal(named)),
        select(User.id).where(User.name == named),
        select(Node.id).where(Node.is_called(named)),
    )


def _names_of(session: Session, ids: set[str]) -> dict[str, str]:
    """Return the names of people and nodes by id."""
    named = union_all(
        select(User.id, User.name).where(User.id.in_(ids)),
        select(Node.id, Node.name).where(Node.id.in_(ids)),
    )
    return {row_id: name for row_id, name in session.execute(named)}


def _view(row: AuditEntry, names: Mapping[str, str]) -> AuditView:
    return AuditView(
        id=row.id,
        at=row.at,
        epoch=None,
        kind=row.action,
        from_state=None,
        to_state=None,
        reason_code="",
        message=f"{row.actor}: {row.action} {row.subject}",
        actor=row.actor,
        subject=row.subject,
        details=row.details,
        actor_name=names.get(row.actor),
        subject_name=names.get(row.subject),
    )
