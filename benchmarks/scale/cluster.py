"""The cluster before the first job: its nodes, enrolled one by one, and its people."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from benchmarks.course.cohort import Person, signed_in
from benchmarks.course.houses import House
from benchmarks.course.records import Records
from benchmarks.course.wire import Line
from benchmarks.nodes import FakeNode, Pace, enrol
from core.database.database import Database

GPUS = 8
CLASSES = ("a100x8", "a100x8", "a100x8", "v100x8")  # three quarters, one quarter
STEP_S = 5.0


@dataclass(frozen=True)
class Cluster:
    """Nodes that hear doorbells, and people who are signed in."""

    nodes: Sequence[FakeNode]
    people: Sequence[Person]


def build(house: House, records: Records, *, nodes: int, people: int) -> Cluster:
    """Enrol the nodes and import the people."""
    pace = Pace(beat_at_work_s=Pace.beat_s, step_s=STEP_S, hears_doorbells=True)
    names = [f"person{number:04}" for number in range(people)]
    with house.http() as http:
        enrolled = []
        for number in track(range(nodes), "enrolling nodes", console=Console(stderr=True)):
            node_class = CLASSES[number % len(CLASSES)]
            prefix = "P3" if node_class == "v100x8" else "A1"
            enrolled.append(
                enrol(
                    http,
                    Line(house.host, house.port, {}),
                    records,
                    name=f"{prefix}-{number:05}",
                    node_class=node_class,
                    gpus=GPUS,
                    pace=pace,
                )
            )
        rows = ["name,email", *(f"{name},{name}@example.edu" for name in names)]
        http.post("/v1/users/import", json={"csv": "\n".join(rows)}).raise_for_status()
    database = Database(house.database_url)
    try:
        secrets = signed_in(database, names)
    finally:
        database.close()
    return Cluster(enrolled, [Person(name, secrets[name]) for name in names])
