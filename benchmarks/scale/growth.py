"""Size of the database, by table, and its growth."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text

from core.database.database import Database

DAY_S = 86_400.0
SHOWN = 8
SIZES = text(
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)


@dataclass(frozen=True)
class Sizes:
    """Bytes of the tables with their indexes, and rows of the table of events."""

    tables: Mapping[str, int]
    events: int

    @property
    def whole(self) -> int:
        """Bytes of all tables."""
        return sum(self.tables.values())


def measure(database: Database) -> Sizes:
    """Return the present sizes; on PostgreSQL only."""
    with database.read() as session:
        tables = {name: size for name, size in session.execute(SIZES)}
        events = int(session.scalar(text("SELECT count(*) FROM events")) or 0)
    return Sizes(tables, events)


def as_table(before: Sizes, after: Sizes, seconds: float) -> str:
    """Return a Markdown table of the tables that grow most, with their growth a day."""
    grown = {name: size - before.tables.get(name, 0) for name, size in after.tables.items()}
    largest = sorted(grown, key=lambda name: -grown[name])[:SHOWN]
    rows = [
        f"| `{name}` | {after.tables[name] / 1e6:,.1f} | "
        f"{grown[name] / seconds * DAY_S / 1e9:,.2f} |"
        for name in largest
    ]
    whole = sum(grown.values()) / seconds * DAY_S / 1e9
    rows.append(f"| all | {after.whole / 1e6:,.1f} | {whole:,.2f} |")
    return "\n".join(["| table | MB now | GB more a day, at this pace |", "|---|---|---|", *rows])
