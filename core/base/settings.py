"""Settings: environment variables TRAINYARD_*, one class per process, read once in its main()."""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", extra="ignore", frozen=True)


class SchedulerSettings(_Settings):
    """What the scheduler needs. Every process that touches the database has these."""

    database_url: str
    """`postgresql+psycopg://...`, or `sqlite:////absolute/path.db`."""
    redis_url: str
    """`redis://host:port/0`, or `unix:///path/to/socket?db=0`."""
    cycle_s: float = Field(default=1.0, gt=0)
    """Longest pause between two scheduler cycles; a doorbell cuts it short."""
    leader_ttl_s: float = Field(default=15.0, gt=0)
    """How long a silent leader keeps its term."""
    unreachable_after_s: float = Field(default=30.0, gt=0)
    """Silence after which a node gets no new work and is shown as unreachable."""
    gang_start_s: float = Field(default=120.0, gt=0)
    """Of a job on several nodes: how long the ranks of one node may keep those of the others
    waiting. Then all nodes are freed, and the job is tried again."""
    public_url: str = ""
    """What users type into the browser; empty means http://host:port of the API."""
    smtp_host: str = ""
    """The mail server that takes our mail; empty: none is sent."""
    smtp_port: int = Field(default=587, ge=1, le=65535)
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    """`none` is for a server on this machine: mail and password travel in the clear."""
    smtp_user: str = ""
    smtp_password: SecretStr = SecretStr("")
    mail_from: str = "trainyard@localhost"
    webhooks_to_private: bool = False
    """Let people's webhooks call addresses of private networks and of this machine."""


class ApiSettings(SchedulerSettings):
    """What the API needs."""

    store: Path
    """The folder of files that every API process sees."""
    host: str = "127.0.0.1"
    port: int = 8471
    listen_fd: int | None = None
    """An open listening socket that was inherited: connections wait in it while the API restarts,
    and nobody else can take the port. Host and port then only say where it listens."""
    trust_proxy: bool = False
    """True behind a reverse proxy that ends TLS; needed to listen beyond loopback."""
    allowed_hosts: list[str] = []
    """With a public URL: further names under which nodes and probes reach the API, as JSON."""
    max_body_bytes: int = 1_000_000
    max_dataset_bytes: int = 1 << 30
    max_model_bytes: int = 64 << 30
    max_file_bytes: int = 64 << 30
    submissions_per_minute: int = 60
    max_queued_jobs: int = 100
    """Per user, waiting or running; 0 is no limit."""
    logins_per_minute: int = Field(default=5, ge=1)
    """Failed sign-ins for one name from one address; ten times as many for it from all addresses.
    Successes are not counted."""
    address_logins_per_minute: int = Field(default=0, ge=0)
    """Failed sign-ins from one address, whatever the names, and by links; 0 is ten times
    `logins_per_minute`."""
    oidc_issuer: str = ""
    """The OpenID provider that people may sign in with, such as
    `https://id.example.org/realms/lab`; empty: none."""
    oidc_client_id: str = ""
    oidc_client_secret: SecretStr = SecretStr("")
    oidc_name: str = ""
    """What the sign-in page calls it; by default its host."""
    oidc_domains: list[str] = []
    """Whose verified addresses get an account without being invited, as JSON: `["example.org"]`."""
    oidc_groups_claim: str = "groups"
    """Where an ID token names the groups of a person."""
    oidc_roles: dict[str, Literal["staff", "admin"]] = {}
    """Role by group, as JSON. If set, every sign-in by the provider sets the role: the highest of
    the person's groups, `user` without one."""
    oidc_labs: dict[str, str] = {}
    """Lab by group, as JSON: who signs in by the provider joins the labs of their groups."""
    keep_logs_days: int = Field(default=180, ge=0)
    """After the end of a job; 0 is for ever. Nothing of a job that goes on is ever deleted."""
    keep_metrics_days: int = Field(default=730, ge=0)
    keep_checkpoints_days: int = Field(default=180, ge=0)
    keep_artifacts_days: int = Field(default=730, ge=0)
    keep_code_days: int = Field(default=730, ge=0)
    """After the last job with it has ended, or after its upload."""
    user_storage_gib: float = Field(default=0.0, ge=0)
    """What one person's checkpoints, artifacts, datasets and models may hold; 0 is no limit."""
    lab_storage_gib: float = Field(default=0.0, ge=0)
    """The same of all members of a lab together."""
    secrets_key: Path | None = None
    """The file of keys that users' secrets are encrypted with, made where it is missing. None:
    `secrets.key` in the store."""

    @property
    def url(self) -> str:
        """What users type into the browser, without a slash at its end."""
        return self.public_url.rstrip("/") or f"http://{self.host}:{self.port}"

    @property
    def most_address_logins(self) -> int:
        """Failed sign-ins a minute from one address."""
        return self.address_logins_per_minute or 10 * self.logins_per_minute

    @property
    def first_start_link(self) -> Path:
        """Where the link that makes the first administrator is written, for its owner's eyes."""
        return self.store.parent / "first-start-link"

    @property
    def oidc_title(self) -> str:
        """What people read of the provider."""
        return self.oidc_name or urlsplit(self.oidc_issuer).hostname or self.oidc_issuer

    @property
    def secrets_key_file(self) -> Path:
        """Where the keys are."""
        return self.secrets_key or self.store / "secrets.key"


class WorkerSettings(_Settings):
    """What a GPU node needs. No database here: a node speaks HTTP and listens to its queue."""

    api_url: str
    redis_url: str
    data: Path
    """Where run directories, the spool and the node's own token are kept."""
    poll_s: float = Field(default=3.0, gt=0)
    """Longest pause between two heartbeats; a doorbell cuts it short."""
    cache_gib: float = Field(default=200.0, gt=0)
    """What datasets and models may hold on this node's disk between jobs."""
    log_mib: float = Field(default=128.0, ge=1)
    """Kept of what one rank prints on one stream: of more its first and its last half."""
    slots: int | None = None
    """CPU slots on a node without a GPU; by default its cores."""
    peer_address: str = ""
    """At which other nodes reach this one; by default the address that leads to the API."""
    warm_launcher: bool = True
    """Keep a process that has imported torch and forks ranks; only used on CPU nodes."""
    sandbox: Literal["auto", "bubblewrap", "namespaces", "none"] = "auto"
    """What shuts a user's script in. auto: the first that works. none: no script runs here."""
    wheels: Path | None = None
    """A folder of wheels that scripts' requirements come from. None: from pip's index."""
    script_disk_gib: float = Field(default=50.0, gt=0)
    """What one script may have written at a time."""
    script_files: int = Field(default=1_000_000, ge=100)
    script_processes: int = Field(default=4096, ge=16)
    job_memory_gib: float | None = Field(default=None, ge=0.25)
    """What one job may use of this node's memory. None: what is left when it starts, but for a
    reserve."""
