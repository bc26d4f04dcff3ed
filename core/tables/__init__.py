"""The database, a module for each subject.

Importing one imports them all, so that `Base.metadata` is complete for every importer.
"""

from core.tables import (
    admin,
    agendas,
    base,
    courses,
    files,
    jobs,
    kinds,
    leases,
    network,
    nodes,
    notices,
    people,
    policies,
    processes,
    scripts,
    sharing,
    telemetry,
    templates,
    workbenches,
    workspaces,
)

__all__ = [
    "admin",
    "agendas",
    "base",
    "courses",
    "files",
    "jobs",
    "kinds",
    "leases",
    "network",
    "nodes",
    "notices",
    "people",
    "policies",
    "processes",
    "scripts",
    "sharing",
    "telemetry",
    "templates",
    "workbenches",
    "workspaces",
]
