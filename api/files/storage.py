"""/v1/me/storage: what is kept for me, how much it may be and for how long."""

from fastapi import APIRouter

from api.auth import SignedIn
from api.files.storage_use import Use, holders, use_by_user
from api.process import ProcessDep
from api.schema_base import View
from core.jobs.retention import CODE, Thing, warning

router = APIRouter(prefix="/v1", tags=["people"])


class HolderView(View):
    """You, or a lab of yours, and the bytes that are kept and may be."""

    name: str
    used: int
    limit: int


class StorageView(View):
    """What is kept for you."""

    used: int
    """Bytes of your checkpoints, artifacts, datasets, models and code."""
    by_kind: dict[str, int]
    limits: list[HolderView]
    """Empty where bytes are not limited."""
    warnings: list[str]
    keep_days: dict[str, int]
    """After the end of a job: logs, metrics, checkpoints, artifacts, code; 0 is for ever."""


@router.get("/me/storage", summary="What is kept for me")
def get_storage(person: SignedIn, process: ProcessDep) -> StorageView:
    """Bytes by kind, the limits, and a warning where one is near."""
    with process.read() as session:
        use = use_by_user(session, [person.id]).get(person.id, Use())
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
