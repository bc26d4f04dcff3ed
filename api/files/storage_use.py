"""Stored bytes of people and labs, and checks of the room for more.

Files are counted as they are listed: two jobs with the same checkpoint both count it, although the
store keeps it once.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.base.errors import Conflict
from core.base.words import size_text
from core.jobs.retention import GIB, Holder, warning
from core.process.settings import ApiSettings
from core.tables.files import Artifact, Checkpoint, Dataset, Model, Tokenizer, Upload
from core.tables.jobs import Job
from core.tables.people import Lab, Membership, User
from core.tables.scripts import CodeArchive


class StorageFull(Conflict):
    """The limit of this person or lab leaves no room."""

    code = "storage_full"
    title = "Storage full"


@dataclass
class StorageUse:
    """Stored bytes of one person by kind: checkpoints, artifacts, datasets, models, tokenizers,
    code, and uploads that are not finished."""

    by_kind: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())


def use_by_user(session: Session, user_ids: Collection[str] | None = None) -> dict[str, StorageUse]:
    """Return the use of storage by user id: of these people, or of all who have stored anything.

    People without stored bytes are left out.
    """
    of_job = (
        ("checkpoints", Checkpoint, Checkpoint.deleted_at.is_(None)),
        ("artifacts", Artifact, None),
    )
    own = (
        ("datasets", Dataset, Dataset.deleted_at.is_(None)),
        ("models", Model, Model.deleted_at.is_(None)),
        ("tokenizers", Tokenizer, Tokenizer.deleted_at.is_(None)),
        ("code", CodeArchive, None),
        ("uploads", Upload, None),  # room for all that is to come
    )
    queries = []
    for kind, table, where in of_job:
        query = select(Job.user_id, func.sum(table.size)).join(table, table.job_id == Job.id)
        query = query if where is None else query.where(where)
        queries.append((kind, Job.user_id, query.group_by(Job.user_id)))
    for kind, owned, where in own:
        query = select(owned.user_id, func.sum(owned.size))
        query = query if where is None else query.where(where)
        queries.append((kind, owned.user_id, query.group_by(owned.user_id)))
    found: dict[str, StorageUse] = {}
    for kind, user_id, query in queries:
        if user_ids is not None:
            query = query.where(user_id.in_(user_ids))
        for user, size in session.execute(query):
            found.setdefault(user, StorageUse()).by_kind[kind] = int(size)
    return found


def holders(session: Session, settings: ApiSettings, *, of_user: str | None = None) -> list[Holder]:
    """Return people and labs that have a limit, with their stored bytes.

    With `of_user`, only that person and their labs; without, people who have stored nothing are
    left out. Empty if nothing is limited.
    """
    user_limit, lab_limit = settings.user_storage_gib, settings.lab_storage_gib
    if not user_limit and not lab_limit:
        return []
    labs: dict[str, set[str]] = {}
    for lab, member in session.execute(
        select(Lab.name, Membership.user_id).join(Membership, Membership.lab_id == Lab.id)
    ):
        labs.setdefault(lab, set()).add(member)
    people = select(User.id, User.name)
    if of_user is not None:
        labs = {lab: members for lab, members in labs.items() if of_user in members}
        people = people.where(User.id == of_user)
    concerned = None if of_user is None else {of_user}.union(*labs.values())
    use = use_by_user(session, concerned)
    found = []
    if user_limit:
        found = [
            _holder(name, [user_id], use, user_limit)
            for user_id, name in session.execute(people)
            if user_id in use or user_id == of_user
        ]
    if lab_limit:
        found += [_holder(f"Lab {lab}", labs[lab], use, lab_limit) for lab in sorted(labs)]
    return found


def require_room(session: Session, settings: ApiSettings, user_id: str, *, adding: int = 0) -> None:
    """Raise StorageFull if the person or one of their labs is above its limit, or would be with
    `adding` more bytes."""
    for holder in holders(session, settings, of_user=user_id):
        if holder.used > holder.limit:
            raise StorageFull(warning(holder) or holder.name)
        if holder.used + adding > holder.limit:
            raise StorageFull(
                f"{holder.name} holds {size_text(holder.used)} of {size_text(holder.limit)}, "
                f"too much for {size_text(adding)} more. Delete datasets, models or code that "
                "you no longer need: `trainyard storage` lists them."
            )


def _holder(
    name: str, user_ids: Iterable[str], use: dict[str, StorageUse], limit_gib: float
) -> Holder:
    ids = frozenset(user_ids)
    used = sum(use[user].total for user in ids if user in use)
    return Holder(name, ids, used, int(limit_gib * GIB))
