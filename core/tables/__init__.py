"""The database, a module for each subject. To import one is to import them all, so that
`Base.metadata` is whole whoever asks."""

from core.tables import (
    admin,
    agendas,
    base,
    files,
    jobs,
    kinds,
    leases,
    nodes,
    notices,
    people,
    policies,
    processes,
    scripts,
    telemetry,
)

__all__ = [
    "admin",
    "agendas",
    "base",
    "files",
    "jobs",
    "kinds",
    "leases",
    "nodes",
    "notices",
    "people",
    "policies",
    "processes",
    "scripts",
    "telemetry",
]
