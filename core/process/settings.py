"""Settings: environment variables TRAINYARD_*, one class per process, read once in its main()."""

import math
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from core.spec.hosts import hosts_in
from core.workspaces.quota import Quota


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", extra="ignore", frozen=True)


class SchedulerSettings(_Settings):
    """Settings of the scheduler. Every process that touches the database has these."""

    database_url: str
    """`postgresql+psycopg://...`, or `sqlite:////absolute/path.db`."""
    redis_url: str
    """`redis://host:port/0`, or `unix:///path/to/socket?db=0`."""
    cycle_s: float = Field(default=1.0, gt=0)
    """Longest pause between two scheduler cycles; a doorbell cuts it short."""
    leader_ttl_s: float = Field(default=10.0, gt=0)
    """Seconds for which a silent leader keeps its term."""
    unreachable_after_s: float = Field(default=30.0, gt=0)
    """Seconds of silence after which a node gets no new work and is shown as unreachable."""
    gang_start_s: float = Field(default=120.0, gt=0)
    """Seconds that one node's ranks of a job on several nodes may keep the others' waiting.

    Then all its nodes are freed, and the job is tried again.
    """
    public_url: str = ""
    """Address that users type into the browser; empty means http://host:port of the API."""
    smtp_host: str = ""
    """Mail server that takes our mail; empty: none is sent."""
    smtp_port: int = Field(default=587, ge=1, le=65535)
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    """`none` is for a server on this machine: mail and password travel in the clear."""
    smtp_user: str = ""
    smtp_password: SecretStr = SecretStr("")
    mail_from: str = "trainyard@localhost"
    webhooks_to_private: bool = False
    """True if people's webhooks may call addresses of private networks and of this machine."""


class ApiSettings(SchedulerSettings):
    """Settings of the API."""

    store: Path
    """Folder of files that every API process sees."""
    host: str = "127.0.0.1"
    port: int = 8471
    listen_fd: int | None = None
    """Open listening socket that was inherited: connections wait in it while the API restarts, and
    nobody else can take the port. Host and port then only say where it listens."""
    trust_proxy: bool = False
    """True behind a reverse proxy that ends TLS; needed to listen beyond loopback."""
    allowed_hosts: list[str] = []
    """Further names, with a public URL, under which nodes and probes reach the API, as JSON."""
    max_body_bytes: int = 1_000_000
    max_dataset_bytes: int = 256 << 30
    max_images_bytes: int = 1 << 30
    """Cap of an archive of images, which is unpacked to be checked."""
    max_model_bytes: int = 64 << 30
    max_file_bytes: int = 64 << 30
    submissions_per_minute: int = 60
    max_queued_jobs: int = 100
    """Jobs of one user that wait or run; 0 is no limit."""
    logins_per_minute: int = Field(default=5, ge=1)
    """Failed sign-ins for one name from one address; ten times as many for it from all addresses.
    Successes are not counted."""
    address_logins_per_minute: int = Field(default=0, ge=0)
    """Failed sign-ins from one address, whatever the names, and by links; 0 is ten times
    `logins_per_minute`."""
    oidc_issuer: str = ""
    """OpenID provider that people may sign in with, such as `https://id.example.org/realms/lab`;
    empty: none."""
    oidc_client_id: str = ""
    oidc_client_secret: SecretStr = SecretStr("")
    oidc_name: str = ""
    """Name of the provider on the sign-in page; by default its host."""
    oidc_domains: list[str] = []
    """Domains whose verified addresses get an account uninvited, as JSON: `["example.org"]`."""
    oidc_groups_claim: str = "groups"
    """Claim of an ID token with the groups of a person."""
    oidc_roles: dict[str, Literal["staff", "admin"]] = {}
    """Role by group, as JSON. If set, every sign-in by the provider sets the role: the highest of
    the person's groups, `user` without one."""
    oidc_labs: dict[str, str] = {}
    """Lab by group, as JSON: a sign-in by the provider joins the labs of the person's groups."""
    keep_logs_days: int = Field(default=180, ge=0)
    """Days after the end of a job; 0 is for ever. Data of a live job is never deleted."""
    keep_metrics_days: int = Field(default=730, ge=0)
    keep_checkpoints_days: int = Field(default=180, ge=0)
    keep_artifacts_days: int = Field(default=730, ge=0)
    keep_code_days: int = Field(default=730, ge=0)
    """Days after the last job with it has ended, or after its upload; 0 is for ever."""
    user_storage_gib: float = Field(default=0.0, ge=0)
    """GiB for one person's checkpoints, artifacts, datasets and models; 0 is no limit."""
    lab_storage_gib: float = Field(default=0.0, ge=0)
    """GiB for the same of all members of a lab together; 0 is no limit."""
    workspace_gib: float = Field(default=10.0, gt=0)
    """GiB that one person's workspace may hold."""
    workspace_files: int = Field(default=100_000, ge=1)
    """Files, folders and links that one person's workspace may hold."""
    workbench_domain: str = ""
    """Domain below which each workbench in the browser has an origin of its own, such as
    `workbenches.example`, with a port if it has one. It must not be of the site of the public URL.
    Empty: `localhost` where only this machine reaches the API, else such workbenches are off."""
    secrets_key: Path | None = None
    """File of the keys that encrypt users' secrets, made where it is missing. None: `secrets.key`
    in the store."""

    @property
    def workspace_quota(self) -> Quota:
        """Quota of every person's workspace."""
        return Quota(int(self.workspace_gib * (1 << 30)), self.workspace_files)

    @property
    def url(self) -> str:
        """Address that users type into the browser, without a slash at its end."""
        return self.public_url.rstrip("/") or f"http://{self.host}:{self.port}"

    @property
    def most_address_logins(self) -> int:
        """Failed sign-ins a minute that one address may make."""
        return self.address_logins_per_minute or 10 * self.logins_per_minute

    @property
    def first_start_link(self) -> Path:
        """File with the link that makes the first administrator, readable by its owner only."""
        return self.store.parent / "first-start-link"

    @property
    def oidc_title(self) -> str:
        """Name of the provider shown to people."""
        return self.oidc_name or urlsplit(self.oidc_issuer).hostname or self.oidc_issuer

    @property
    def secrets_key_file(self) -> Path:
        """File of the keys that encrypt users' secrets."""
        return self.secrets_key or self.store / "secrets.key"


def read_hosts(text: object) -> object:
    """Return the hosts of a setting, each as a rule. Raises ValueError if one is not a host."""
    return tuple(map(str, hosts_in(text))) if isinstance(text, str) else text


class WorkerSettings(_Settings):
    """Settings of a GPU node. No database here: a node speaks HTTP and listens to its queue."""

    api_url: str
    redis_url: str
    data: Path
    """Folder of run directories, the spool and the node's own token."""
    poll_s: float = Field(default=3.0, gt=0)
    """Longest pause between two heartbeats; a doorbell cuts it short."""
    cache_gib: float = Field(default=200.0, gt=0)
    """GiB that datasets and models may take on this node's disk between jobs."""
    whole_tokens_gib: float = Field(default=4.0, ge=0)
    """GiB of a dataset's files up to which its documents become tokens on this node's disk before
    the first step. Those of a larger one are counted, and become tokens when they are read."""
    log_mib: float = Field(default=128.0, ge=1)
    """MiB kept of one rank's output on one stream: if it prints more, the first and last half."""
    slots: int | None = None
    """Most slots that this node offers: by default its GPUs, on a node without them its cores."""
    peer_address: str = ""
    """Address at which other nodes reach this one; by default the one that leads to the API."""
    warm_launcher: bool = True
    """True to keep a process that has imported torch and forks ranks."""
    warm_rests_after_min: float = Field(default=math.inf, gt=0)
    """Minutes without an attempt after which that process, and the one that starts programs, ends
    until the next attempt."""
    sandbox: Literal["auto", "bubblewrap", "namespaces", "none"] = "auto"
    """Sandbox of a user's script. auto: the first that works. none: no script runs here."""
    sharing: Literal["full", "recipes", "none"] = "full"
    """Most that this node may offer to owners of parts of it. full: as much as it can. recipes:
    scripts run alone. none: it is leased whole."""
    wheels: Path | None = None
    """Folder of wheels that scripts' requirements come from. None: from pip's index."""
    workspaces: Path | None = None
    """Folder that every node of the site sees, with a folder for each person's workspace. None: a
    workspace is kept in the store, and copied to the node that it is used on."""
    workspace_uid: int = Field(default=1_879_100_000, ge=1000, le=4_000_000_000)
    """First of the users that own people's folders in `workspaces` if the worker is root: one for
    each person, the same on every node."""
    workspace_every_s: float = Field(default=60.0, gt=0)
    """Seconds between two looks at a workspace that a program is changing."""
    egress: Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(read_hosts)] = None
    """Hosts, separated by commas, that programs may reach from this node at most, whatever an
    administrator grants; `none` for no host. None: what is granted."""
    script_disk_gib: float = Field(default=50.0, gt=0)
    """GiB that one script may have written at a time."""
    script_files: int = Field(default=1_000_000, ge=100)
    script_processes: int = Field(default=4096, ge=16)
    job_memory_gib: float | None = Field(default=None, ge=0.25)
    """GiB of this node's memory that one job may use. None: the memory free when it starts, less a
    reserve."""
