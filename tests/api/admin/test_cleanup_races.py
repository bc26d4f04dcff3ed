"""A clean-up races with the edits of the leases' owner: 32 threads, both databases, by SQL."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select

from core.states import LeaseState
from core.tables.admin import AuditEntry
from core.tables.leases import Lease, Occupancy
from core.tables.notices import Notice
from tests.api.admin.test_cleanups import lease_of, preview
from tests.api.conftest import World, client
from tests.api.yard import ROUNDS, THREADS
from tests.one_database import quick_on_postgresql

pytestmark = pytest.mark.race

LEASES = 8
APPLYING = 8  # of the threads; the others are the owner's, who cancels and prolongs


@pytest.mark.parametrize("rounds", ROUNDS)
@quick_on_postgresql
def test_a_clean_up_against_its_owners_edits_has_one_outcome_each(
    world: World, rounds: int
) -> None:
    ann = client(world.app, world.tokens["ann"])
    staff = client(world.app, world.tokens["stefan"])
    notices = 0
    for _ in range(rounds):
        ids = [lease_of(world, "ann", hours) for hours in range(2, 2 + 2 * LEASES, 2)]
        plan = preview(world, user="ann")
        barrier = threading.Barrier(THREADS)

        def act(
            number: int,
            ids: list[str] = ids,
            plan: dict[str, Any] = plan,
            gate: threading.Barrier = barrier,
        ) -> tuple[str, int]:
            lease = f"/v1/leases/{ids[number % LEASES]}"
            path = f"/v1/admin/cleanups/{plan['id']}/apply"
            gate.wait(60)
            if number < APPLYING:
                return "apply", staff.post(path, json={"hash": plan["hash"]}).status_code
            if number < 2 * APPLYING:
                return "extend", ann.post(f"{lease}/extend", json={"hours": 1}).status_code
            return "cancel", ann.delete(lease).status_code

        with ThreadPoolExecutor(THREADS) as pool:
            answers = set(pool.map(act, range(THREADS)))
        assert {status for what, status in answers if what == "apply"} == {200}
        assert {status for what, status in answers if what != "apply"} <= {200, 204, 409}
        with world.database.read() as session:
            rows = session.scalars(select(Lease).where(Lease.id.in_(ids))).all()
            live = session.scalar(select(func.count()).select_from(Occupancy).where(Occupancy.live))
            removed = session.scalars(
                select(AuditEntry.subject).where(
                    AuditEntry.action == "cleanup.remove", AuditEntry.subject.in_(ids)
                )
            ).all()
            told = session.scalar(
                select(func.count()).select_from(Notice).where(Notice.kind == "leases_cleaned")
            )
        assert {row.state for row in rows} == {LeaseState.CANCELLED}
        assert live == 0
        assert len(removed) == len(set(removed))
        by_staff = {row.id for row in rows if row.reason.startswith("Removed by stefan")}
        assert by_staff == set(removed)
        notices += 1 if removed else 0
        assert told == notices
