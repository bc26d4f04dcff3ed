"""What the API answers about storage, as frozen dataclasses."""

from dataclasses import dataclass

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class StorageHolder(View):
    """You or a lab of yours: bytes that are kept, and bytes that may be."""

    name: str
    used: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Storage(View):
    """What is kept for you, in bytes; `keep_days` counts from the end of a job, 0 is for ever."""

    used: int
    by_kind: dict[str, int]
    limits: tuple[StorageHolder, ...]
    warnings: tuple[str, ...]
    keep_days: dict[str, int]
