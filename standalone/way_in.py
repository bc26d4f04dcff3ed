"""`trainyard login-link`: a way in for whoever owns the platform and has lost every login."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from api.sign_in.first_start import ensure_link
from api.sign_in.owner_links import owner_link
from core.database.database import Database
from core.process.settings import ApiSettings
from standalone.data_directory import DataDirectory
from standalone.processes import FIRST_PORT, answers

DATABASE = "TRAINYARD_DATABASE_URL"

Say = Callable[[str], None]


class NoWayIn(ValueError):
    """No link can be made; the message states the reason and the remedy."""


@dataclass(frozen=True)
class Platform:
    """A platform's database, and the address at which people reach it."""

    database_url: str
    url: str
    first_start: Path


def find_platform(data: DataDirectory | None, say: Say) -> Platform:
    """The platform of a data folder, else that of the API's environment, else the default folder.

    NoWayIn where there is none.
    """
    if data is None and os.environ.get(DATABASE):
        return _of_environment()
    return _of_folder(data or DataDirectory.default(), say)


def make_link(platform: Platform, name: str | None, say: Say, *, actor: str) -> str:
    """A link that signs the administrator `name` in, or makes the first one where there is nobody.

    Says what the link does. NotFound where `name` is not an administrator.
    """
    database = Database(platform.database_url, pool_size=1)
    try:
        link = owner_link(database, url=platform.url, actor=actor, name=name)
        if link is not None:
            say(f"This link signs in as {link.name}, once, until {link.expires_at:%H:%M} UTC:")
            return link.url
        first = ensure_link(database, url=platform.url, path=platform.first_start)
    except SQLAlchemyError as error:
        reason = str(error).splitlines()[0][:300]
        raise NoWayIn(f"The database cannot be used: {reason}") from error
    finally:
        database.close()
    if first is None:
        raise NoWayIn("No administrator is enabled here, so a login link cannot be made.")
    say("Nobody has an account yet. This link creates the first administrator, once:")
    return first


def _of_folder(data: DataDirectory, say: Say) -> Platform:
    if not data.database.is_file():
        raise NoWayIn(
            f"There is no platform in {data.path}. Name its folder with --data, or set "
            f"{DATABASE} to the same value as for the API."
        )
    url = data.running_address()
    if not answers(url):
        url = f"http://127.0.0.1:{FIRST_PORT}"
        say(
            f"The platform is not running. Start it before you open the link: "
            f"trainyard up{data.option} --port {FIRST_PORT}"
        )
    return Platform(data.database_url, url, data.first_start)


def _of_environment() -> Platform:
    try:
        settings = ApiSettings()
    except ValidationError as error:
        names = ", ".join(f"TRAINYARD_{str(e['loc'][0]).upper()}" for e in error.errors())
        raise NoWayIn(f"Set {names} to the same values as for the API.") from error
    return Platform(settings.database_url, settings.url, settings.first_start_link)
