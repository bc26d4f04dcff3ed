"""Bookings against a window that shrinks: no lease is left outside that the plan did not show."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Barrier

import pytest
from sqlalchemy import select

from core.states import LeaseState
from core.tables.leases import Lease
from tests.api.conftest import World
from tests.api.policies.test_policies import document, post
from tests.api.times import next_hour
from tests.one_database import quick_on_postgresql

pytestmark = [pytest.mark.db, pytest.mark.race]
BOOKERS = 32
FEW = pytest.param(2, id="few")
MANY = pytest.param(50, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("rounds", [FEW, MANY])
@quick_on_postgresql
def test_book_against_window_shrink(world: World, rounds: int) -> None:
    with ThreadPoolExecutor(BOOKERS + 1) as pool:
        for number in range(rounds):
            # 32 hours, half of which will be outside.
            post(world, document(1 + number, more=""))
            [window] = world.staff.get("/v1/windows").json()["data"]
            address = f"/v1/windows/{window['id']}"
            change = {"ends_at": next_hour(BOOKERS // 2), "orphans": "cancel"}
            barrier = Barrier(BOOKERS + 1)

            def book(hour: int, barrier: Barrier = barrier) -> int:
                wanted = {"node": "box", "start": next_hour(hour), "hours": 1}
                client = world.ann if hour % 2 else world.bob
                barrier.wait()
                return client.post("/v1/leases", json=wanted).status_code

            def shrink(
                address: str = address, change: dict = change, barrier: Barrier = barrier
            ) -> int:
                barrier.wait()
                for _ in range(BOOKERS + 1):
                    plan = world.staff.patch(address, json=change).json()
                    done = world.staff.patch(address, json={**change, "plan": plan["hash"]})
                    if done.status_code != 409:
                        return done.status_code
                return 409

            shrunk = pool.submit(shrink)
            answers = set(pool.map(book, range(BOOKERS)))
            assert shrunk.result() == 200
            assert answers <= {201, 422}, "booked, or refused by a rule; never a server error"
            with world.database.read() as session:
                left = session.scalars(
                    select(Lease.id).where(
                        Lease.state == LeaseState.BOOKED,
                        Lease.hold_end > datetime.fromisoformat(change["ends_at"]),
                    )
                ).all()
                booked = session.scalars(select(Lease.id).where(Lease.state == LeaseState.BOOKED))
                inside = booked.all()
            assert left == []
            for lease_id in inside:
                assert world.staff.delete(f"/v1/leases/{lease_id}").status_code == 204
