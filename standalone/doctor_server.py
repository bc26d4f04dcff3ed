"""`trainyard doctor --server`: what an API and a scheduler need on this machine."""

import os
import platform
import resource
import shutil
import socket
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import httpx2
import redis
from alembic.runtime.migration import MigrationContext
from pydantic import ValidationError
from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError

from api.files.inventory import differences
from api.files.store import Store
from api.middleware.headers import is_loopback
from api.sign_in.oidc_provider import Provider, ProviderAway, provider_flaw
from api.sign_in.routes_oidc import TRIP_PATH
from core.base import tracing
from core.base.clock import wall_clock
from core.base.words import size_text
from core.database.database import Database
from core.database.schema import REMEDY, UnknownRevision, equal_revision, newest_revision
from core.process.settings import ApiSettings
from core.process.timekeeping import database_time
from core.tables.files import StoredFile
from core.tables.nodes import Node
from core.tables.processes import Leadership
from standalone.doctor_code import about_code
from trainyard.doctor import Examiner, Finding

finding = Examiner("server")

SKEW = timedelta(seconds=2)
FREE_WARN, FREE_FAIL = 0.10, 0.02  # of the disk
OPEN_FILES = 4096  # 1,000 live streams and as many requests, with room
GIB = 1 << 30


def examine() -> Iterator[Finding]:
    """Check versions, settings, database, migrations, clocks, broker, store, port, leader."""
    yield finding(
        "versions", "ok", f"trainyard-platform {version('trainyard-platform')}, {_python()}"
    )
    try:
        settings = ApiSettings()
    except ValidationError as error:
        for item in error.errors():
            name = f"TRAINYARD_{'_'.join(str(part) for part in item['loc']).upper()}"
            yield finding("settings", "fail", f"{name}: {item['msg']}", f"Set {name}; see env.")
        return
    yield from about_safety(settings)
    yield from about_provider(settings)
    yield from about_database(settings)
    yield about_broker(settings.redis_url)
    store = about_folder(finding, "store", settings.store)
    yield store
    if store.level != "fail":
        yield from about_files(settings)
    yield about_port(settings)
    yield _about_open_files()
    if tracing.is_wanted(os.environ):
        yield _about_traces()


def about_safety(settings: ApiSettings) -> Iterator[Finding]:
    """Check that passwords do not cross the network unencrypted."""
    url = settings.public_url
    if not is_loopback(settings.host) and not settings.trust_proxy:
        yield finding(
            "exposure",
            "fail",
            f"TRAINYARD_HOST={settings.host} without a proxy that ends TLS",
            "Listen on 127.0.0.1, or set TRAINYARD_TRUST_PROXY=true behind a proxy.",
        )
    elif settings.trust_proxy and not url.startswith("https://"):
        yield finding(
            "exposure",
            "warn" if is_loopback(settings.host) else "fail",
            f"behind a proxy, but TRAINYARD_PUBLIC_URL is {url or 'not set'}",
            "Set it to the https address that users type; cookies depend on it.",
        )
    else:
        yield finding("exposure", "ok", url or f"http://{settings.host}:{settings.port}")


def about_provider(settings: ApiSettings) -> Iterator[Finding]:
    """Check sign-in by the OpenID provider, if one is configured."""
    if not settings.oidc_issuer:
        return
    flaw = provider_flaw(settings)
    if flaw is not None:
        yield finding(
            "sign-in", "fail", flaw, "Set it to the value on the provider's page of clients."
        )
        return
    try:
        where = Provider(settings).look()
    except ProviderAway as error:
        yield finding(
            "sign-in",
            "warn",
            error.message,
            "Does TRAINYARD_OIDC_ISSUER/.well-known/openid-configuration answer from here? "
            "Passwords and login links still work.",
        )
        return
    yield finding("sign-in", "ok", f"{where}, back to {settings.url}{TRIP_PATH}/callback")


def about_database(settings: ApiSettings) -> Iterator[Finding]:
    """Reachable, which version, which schema, what time it is there, who leads, who is heard."""
    database = Database(settings.database_url, pool_size=1)
    try:
        with database.read() as session:
            query = "SELECT sqlite_version()" if database.is_sqlite else "SHOW server_version"
            yield finding(
                "database",
                "ok",
                f"{database.url.get_backend_name()} {session.scalar(text(query))}",
            )
            revision = MigrationContext.configure(session.connection()).get_current_revision()
        yield _about_schema(revision)
        off = wall_clock() - database_time(database)
        right = abs(off) < SKEW
        yield finding(
            "clock",
            "ok" if right else "warn",
            f"{off.total_seconds():+.1f} s from the database's",
            "" if right else "Synchronise it with a time server (chrony, systemd-timesyncd).",
        )
        if revision == newest_revision():
            yield from _about_life(database)
            with database.read() as session:
                yield from about_code(finding, session)
    except SQLAlchemyError as error:
        yield finding(
            "database",
            "fail",
            str(error).splitlines()[0][:200],
            "Is the database running, and is TRAINYARD_DATABASE_URL right?",
        )
    finally:
        database.close()


def about_broker(url: str) -> Finding:
    """Check the broker of doorbells. Without it everything works, some seconds later."""
    client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    try:
        info = client.info("server")
        policy = str(client.config_get("maxmemory-policy").get("maxmemory-policy", "unknown"))
    except (redis.RedisError, OSError) as error:
        return finding(
            "broker",
            "warn",
            f"does not answer: {error}",
            "Start it; meanwhile work is picked up by polling, up to 3 s later.",
        )
    finally:
        client.close()
    name = f"{info.get('server_name', 'redis')} {info.get('redis_version')}"
    if policy not in ("noeviction", "unknown"):
        return finding(
            "broker", "warn", f"{name}, evicts by {policy}", "Set maxmemory-policy noeviction."
        )
    return finding("broker", "ok", name)


def about_folder(finding: Examiner, what: str, folder: Path) -> Finding:
    """Check that a folder exists, is writable, and has free space."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = folder / f".doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return finding(
            what, "fail", f"{folder}: {error.strerror}", "Make it writable for the platform's user."
        )
    free = usage.free / usage.total
    told = f"{folder}: {usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free"
    if free < FREE_WARN:
        return finding(
            what,
            "fail" if free < FREE_FAIL else "warn",
            told,
            "Free some space, or keep less: TRAINYARD_KEEP_CHECKPOINTS_DAYS, "
            "TRAINYARD_USER_STORAGE_GIB.",
        )
    return finding(what, "ok", told)


def about_files(settings: ApiSettings) -> Iterator[Finding]:
    """Check that the store has exactly the files that the database names."""
    database, store = Database(settings.database_url, pool_size=1), Store(settings.store)
    try:
        found = list(differences(database, store))
        with database.read() as session:
            files = session.scalar(
                select(func.count()).select_from(StoredFile).where(StoredFile.gone_at.is_(None))
            )
    except SQLAlchemyError:
        return  # there is no database yet, or it is older than this version: said above
    finally:
        database.close()
    lost = [sha256 for each in found for sha256 in each.lost]
    unnamed = [kept for each in found for kept in each.unnamed]
    if lost:
        yield finding(
            "files",
            "fail",
            f"{len(lost):,} of {files:,} files that the database names are not in the store, such "
            f"as {lost[0]}",
            "Is TRAINYARD_STORE right? If so, copy them back from a backup: files/ab/abcdef...",
        )
    if unnamed:
        yield finding(
            "files",
            "warn",
            f"{len(unnamed):,} files in the store ({size_text(sum(k.size for k in unnamed))}) "
            f"are not named by any row, such as {unnamed[0].sha256}",
            "Do TRAINYARD_STORE and TRAINYARD_DATABASE_URL belong to one platform? If so, do "
            "nothing: the API removes the files within two days.",
        )
    if not lost and not unnamed:
        yield finding("files", "ok", f"{files:,} in the store, as the database says")


def about_port(settings: ApiSettings) -> Finding:
    """Check that our port is free, or that an API of ours has it."""
    where = f"{settings.host}:{settings.port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
            return finding("port", "ok", f"{where} is free: no API is running here")
        except OSError as error:
            why = error.strerror
    try:
        answer = httpx2.get(f"http://{where}/readyz", timeout=3)
        if answer.status_code == 200:
            return finding("port", "ok", f"{where}: an API is running here")
        found = f"{where}: answers {answer.status_code}"
    except httpx2.TransportError:
        found = f"{where}: {why}"
    return finding(
        "port",
        "fail",
        found,
        "Another program uses the port: ss -ltnp. Or set another TRAINYARD_PORT.",
    )


def _about_schema(revision: str | None) -> Finding:
    newest = newest_revision()
    if revision == newest:
        return finding("migrations", "ok", newest)
    try:
        equal_revision(revision or newest)
    except UnknownRevision:
        found = f"the database is at {revision}, which this version cannot upgrade"
        return finding("migrations", "fail", found, REMEDY)
    return finding(
        "migrations",
        "warn",
        f"the database is at {{revision or 'no revision'}}; this version needs {newest}",
        "Back up (trainyard backup), then start one API: it brings the database up to date.",
    )


def _about_life(database: Database) -> Iterator[Finding]:
    now = database_time(database)
    with database.read() as session:
        leader = session.scalars(select(Leadership)).first()
        silent = session.scalars(
            select(Node.name).where(Node.unreachable_since.is_not(None)).order_by(Node.name)
        ).all()
        nodes = session.scalar(select(func.count()).select_from(Node).where(Node.state == "ready"))
    if leader is None or leader.expires_at < now:
        since = f"since {leader.expires_at:%Y-%m-%d %H:%M} UTC" if leader else "so far"
        yield finding(
            "scheduler", "warn", f"no scheduler leads {since}", "Start one: trainyard scheduler"
        )
    else:
        yield finding("scheduler", "ok", f"{leader.holder.split(':')[0]}, term {leader.term}")
    if silent:
        yield finding(
            "nodes",
            "warn",
            f"not heard from: {', '.join(silent)}",
            "Check on each that `trainyard worker` is running; `trainyard doctor --node` "
            "gives details.",
        )
    else:
        yield finding("nodes", "ok", f"{nodes} ready")


def _about_traces() -> Finding:
    """Whether what sends them is installed."""
    if find_spec("opentelemetry.sdk") is None:
        return finding(
            "traces",
            "fail",
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but no traces are sent",
            tracing.INSTALL,
        )
    return finding("traces", "ok", "sent as configured by OpenTelemetry's variables")


def _about_open_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        return finding("open files", "warn", f"at most {hard}", "LimitNOFILE=65536 in the unit.")
    told = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    return finding("open files", "ok", told)


def _python() -> str:
    return f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
