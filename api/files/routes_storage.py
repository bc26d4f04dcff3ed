"""/v1/me/storage: one's stored bytes, their limits, and the days for which they are kept."""

from fastapi import APIRouter

from api.files.storage_use import StorageUse, holders, use_by_user
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.schemas import View
from core.jobs.retention import CODE, Thing, warning

router = APIRouter(prefix="/v1", tags=["people"])


class HolderView(View):
    """Bytes used by you or a lab of yours, and the most that are allowed."""

    name: str
    used: int
    limit: int


class StorageView(View):
    """Storage of one person."""

    used: int
    """Bytes of your checkpoints, artifacts, datasets, models and code."""
    by_kind: dict[str, int]
    limits: list[HolderView]
    """Limits on your bytes and those of your labs; empty if there are none."""
    warnings: list[str]
    keep_days: dict[str, int]
    """Days for which logs, metrics, checkpoints, artifacts and code are kept after the end of a
    job; 0 means for ever."""


@router.get("/me/storage", summary="Get my storage use")
def get_storage(person: SignedIn, process: ProcessDep) -> StorageView:
    """Return your stored bytes by kind, the limits, and a warning for each limit that is near."""
    with process.read() as session:
        use = use_by_user(session, [person.id]).get(person.id, StorageUse())
        limited = holders(session, process.settings, of_user=person.id)
    settings = process.settings
    return StorageView(
        used=use.total,
        by_kind=use.by_kind,
        limits=[HolderView(name=h.name, used=h.used, limit=h.limit) for h in limited],
        warnings=[sentence for holder in limited if (sentence := warning(holder))],
        keep_days={
            Thing.LOGS: settings.keep_logs_days,
            Thing.METRICS: settings.keep_metrics_days,
            Thing.CHECKPOINTS: settings.keep_checkpoints_days,
            Thing.ARTIFACTS: settings.keep_artifacts_days,
            CODE: settings.keep_code_days,
        },
    )
