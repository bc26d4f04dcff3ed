"""`trainyard admin backup` and `restore`, with the settings of the API on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.exc import SQLAlchemyError

from api.files.store import Store
from core.database.database import Database
from standalone.backup import BackupManifest, back_up
from standalone.backup import restore as restore_from
from standalone.backup_keys import KEYS


class StorageSettings(BaseSettings):
    """Places of database, store and keys."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", extra="ignore", frozen=True)

    database_url: str = Field(min_length=1)
    store: Path
    secrets_key: Path | None = None

    @property
    def keys(self) -> Path:
        """The file of keys that users' secrets are sealed with."""
        return self.secrets_key or self.store / KEYS


def backup(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Save into `folder`. ValueError with a sentence where that can't be done."""
    return _with_place(back_up, folder, say)


def restore(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Load from `folder`. ValueError with a sentence where that can't be done."""
    return _with_place(restore_from, folder, say)


def _with_place(
    work: Callable[[Database, Store, Path, Path, Callable[[str], None]], BackupManifest],
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    try:
        place = StorageSettings()
    except ValidationError as error:
        names = ", ".join(f"TRAINYARD_{str(e['loc'][0]).upper()}" for e in error.errors())
        raise ValueError(f"Set {names} to the same values as for the API.") from error
    database = Database(place.database_url, pool_size=2)
    try:
        manifest = work(database, Store(place.store), place.keys, folder, say)
    except SQLAlchemyError as error:
        raise ValueError(f"The database refused: {str(error).splitlines()[0][:300]}") from error
    except OSError as error:
        raise ValueError(f"The disk refused: {error}") from error
    finally:
        database.close()
    return {
        "folder": str(folder),
        "made_at": manifest.made_at,
        "revision": manifest.revision,
        "rows": sum(dumped.rows for dumped in manifest.tables.values()),
        "files": manifest.files,
        "bytes": manifest.bytes,
    }
