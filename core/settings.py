"""Settings: environment variables TRAINYARD_*, one class per process, read once in its main()."""

from pathlib import Path

from pydantic import Field
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


class ApiSettings(SchedulerSettings):
    """What the API needs."""

    store: Path
    """The folder of files that every API process sees."""
    host: str = "127.0.0.1"
    port: int = 8471
    listen_fd: int | None = None
    """An open listening socket that was inherited: connections wait in it while the API restarts,
    and nobody else can take the port. Host and port then only say where it listens."""
    public_url: str = ""
    """What users type into the browser; empty means http://host:port."""
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
    logins_per_minute: int = 5


class WorkerSettings(_Settings):
    """What a GPU node needs. No database here: a node speaks HTTP and listens to its queue."""

    api_url: str
    redis_url: str
    data: Path
    """Where run directories, the spool and the node's own token are kept."""
    poll_s: float = Field(default=3.0, gt=0)
    """Longest pause between two heartbeats; a doorbell cuts it short."""
    slots: int | None = None
    """CPU slots on a node without a GPU; by default its cores."""
    warm_launcher: bool = True
    """Keep a process that has imported torch and forks ranks; only used on CPU nodes."""
