"""/v1/admin/unsafe-settings: weak points of this installation, each with a remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from fastapi import APIRouter
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.middleware.headers import is_loopback
from api.web.auth import AdminOnly
from api.web.process import ProcessDep
from api.web.schemas import Page, View
from core.leases.active_policies import active_policies
from core.process.settings import ApiSettings
from core.states import NodeState
from core.tables.kinds import Role
from core.tables.nodes import Node
from core.tables.people import User

router = APIRouter(prefix="/v1/admin", tags=["administration"])

GUESSED = ("", "postgres", "trainyard", "password", "changeme", "secret")
MOST_LOGINS = 30  # a minute; 43,000 guesses a day


class UnsafeSettingView(View):
    """A setting, or another part of the installation, that could be safer."""

    setting: str
    """Environment variable of the setting, or the name of the weak part."""
    level: Literal["danger", "warn"]
    """Severity. `danger`: others may get in, or read secrets."""
    found: str
    todo: str


@dataclass(frozen=True)
class Facts:
    """Facts about the installation from the database."""

    people: int
    admins: int
    has_policy: bool
    without_sandbox: tuple[str, ...]
    """Names of the nodes that have no sandbox for scripts."""


@router.get("/unsafe-settings", summary="List unsafe settings")
def list_unsafe_settings(person: AdminOnly, process: ProcessDep) -> Page[UnsafeSettingView]:
    """Return unsafe settings of this API process and of the nodes, the most dangerous first.

    The list is empty if nothing was found.
    """
    with process.read() as session:
        facts = read_facts(session)
    found = list(unsafe(process.settings, facts, url=process.url))
    return Page[UnsafeSettingView](data=sorted(found, key=lambda one: one.level != "danger"))


def read_facts(session: Session) -> Facts:
    """Read the numbers of people, the presence of booking rules, and nodes without a sandbox."""
    roles = session.execute(
        select(User.role, func.count()).where(User.disabled.is_(False)).group_by(User.role)
    ).all()
    numbers = {role: number for role, number in roles}
    nodes = session.scalars(
        select(Node).where(Node.state != NodeState.RETIRED).order_by(Node.name)
    ).all()
    return Facts(
        people=sum(numbers.values()),
        admins=numbers.get(Role.ADMIN, 0),
        has_policy=bool(active_policies(session)),
        without_sandbox=tuple(
            node.name for node in nodes if (node.inventory or {}).get("sandbox") == ""
        ),
    )


def unsafe(settings: ApiSettings, facts: Facts, *, url: str) -> Iterator[UnsafeSettingView]:
    """Yield everything that could be safer. Pure; no finding contains a password."""
    public = urlsplit(url)
    yield from _about_the_way(settings, public)
    yield from _about_servers(settings, is_shared=not _is_local(public))
    yield from _about_secrets(settings)
    yield from _about_limits(settings)
    if not facts.has_policy and facts.people > 1:
        yield _warn(
            "booking rules",
            f"No booking rules are active, so each of {facts.people} people may book every node.",
            "Apply a policy: trainyard admin policy apply FILE --dry-run",
        )
    if facts.admins == 1 and facts.people > 1:
        yield _warn(
            "administrators",
            "There is only one administrator; if that account is lost, nobody can administer "
            "the platform.",
            "Appoint a second one: trainyard admin set-role NAME admin",
        )
    if facts.without_sandbox:
        yield _warn(
            "sandbox",
            f"{', '.join(facts.without_sandbox)} cannot sandbox scripts; scripts are refused "
            "there.",
            "Install bubblewrap there or allow user namespaces; `trainyard doctor --node` "
            "lists the missing parts.",
        )


def _about_the_way(settings: ApiSettings, public: SplitResult) -> Iterator[UnsafeSettingView]:
    if public.scheme != "https" and not _is_local(public):
        yield _danger(
            "TRAINYARD_PUBLIC_URL",
            f"{public.scheme}://{public.netloc} is not encrypted: anybody on the network path "
            "can read passwords and take over sessions.",
            "Put a proxy that ends TLS in front of it, and set the https address that users type.",
        )
    if settings.trust_proxy and not is_loopback(settings.host):
        yield _warn(
            "TRAINYARD_HOST",
            f"{settings.host} with TRAINYARD_TRUST_PROXY: a client that reaches this port "
            "without the proxy can claim any address.",
            "Listen on an address that only the proxy can reach, or close the port to "
            "everybody else.",
        )


def _about_servers(settings: ApiSettings, *, is_shared: bool) -> Iterator[UnsafeSettingView]:
    database, redis = urlsplit(settings.database_url), urlsplit(settings.redis_url)
    if database.scheme.startswith("sqlite"):
        if is_shared:
            yield _warn(
                "TRAINYARD_DATABASE_URL",
                "SQLite behind a public address: a second API on another machine would not see the "
                "same rows.",
                "Use PostgreSQL: docs/operate.md.",
            )
    elif database.hostname is not None and (database.password or "") in GUESSED:
        yield _danger(
            "TRAINYARD_DATABASE_URL",
            f"The database on {database.hostname} has no password, or one that is easy to guess.",
            "Set a random one: openssl rand -hex 24",
        )
    if redis.hostname is not None and not is_loopback(redis.hostname):
        if (redis.password or "") in GUESSED:
            yield _danger(
                "TRAINYARD_REDIS_URL",
                f"The broker on {redis.hostname} has no password, or one that is easy to guess.",
                "Set a random one with requirepass.",
            )
        elif redis.scheme == "redis" and is_shared:
            yield _warn(
                "TRAINYARD_REDIS_URL",
                f"The connection to the broker on {redis.hostname} is not encrypted.",
                "Keep the broker on a network of its own, or use rediss://.",
            )


def _about_secrets(settings: ApiSettings) -> Iterator[UnsafeSettingView]:
    if settings.secrets_key is None:
        yield _warn(
            "TRAINYARD_SECRETS_KEY",
            "The key that encrypts users' secrets is in the store: a copy of the store "
            "contains both.",
            "Name a file outside the store, and keep a copy of it apart from the backups.",
        )
    if settings.webhooks_to_private:
        yield _warn(
            "TRAINYARD_WEBHOOKS_TO_PRIVATE",
            "Users' webhooks may call addresses of this network and of this machine.",
            "Turn it off, unless everybody with an account may reach these addresses anyway.",
        )
    if (
        settings.smtp_host
        and settings.smtp_security == "none"
        and not is_loopback(settings.smtp_host)
    ):
        tell = _danger if settings.smtp_password.get_secret_value() else _warn
        yield tell(
            "TRAINYARD_SMTP_SECURITY",
            f"Mail is sent to {settings.smtp_host} unencrypted.",
            "Set starttls or tls.",
        )


def _about_limits(settings: ApiSettings) -> Iterator[UnsafeSettingView]:
    if settings.logins_per_minute > MOST_LOGINS:
        yield _danger(
            "TRAINYARD_LOGINS_PER_MINUTE",
            f"{settings.logins_per_minute:,} failed sign-ins a minute allow passwords to be "
            "guessed.",
            "Set it to 5, the default.",
        )
    if settings.address_logins_per_minute > 10 * MOST_LOGINS:
        yield _warn(
            "TRAINYARD_ADDRESS_LOGINS_PER_MINUTE",
            f"{settings.address_logins_per_minute:,} failed sign-ins a minute allow one "
            "address to try a few passwords on every name.",
            "Remove the setting: the default of 50 is enough for a lecture hall, because "
            "only failed sign-ins count.",
        )
    if settings.max_queued_jobs == 0:
        yield _warn(
            "TRAINYARD_MAX_QUEUED_JOBS",
            "One person can fill the queue.",
            "Set a limit, such as 100.",
        )
    if settings.user_storage_gib == 0:
        yield _warn(
            "TRAINYARD_USER_STORAGE_GIB",
            "One person's checkpoints can fill the store, and then nobody's checkpoints can "
            "be kept.",
            "Set a limit for each person.",
        )


def _is_local(public: SplitResult) -> bool:
    return is_loopback(public.hostname or "")


def _danger(setting: str, found: str, todo: str) -> UnsafeSettingView:
    return UnsafeSettingView(setting=setting, level="danger", found=found, todo=todo)


def _warn(setting: str, found: str, todo: str) -> UnsafeSettingView:
    return UnsafeSettingView(setting=setting, level="warn", found=found, todo=todo)
