"""Passes to workbenches, on both databases: traded once, and valid as long as what they hang on."""

import pytest

from api.workbenches.passes import _is_valid, use_ticket
from api.workbenches.tunnels import Key
from core.base.clock import utc_now
from core.base.errors import Forbidden
from core.base.secret_text import digest
from tests.api.conftest import World
from tests.api.shapes import heartbeat, place

pytestmark = pytest.mark.db
SPEC = {"name": "lab", "workbench": {"kind": "jupyter"}, "resources": {"wall_time": "50min"}}


def test_a_ticket_is_traded_once_and_its_cookie_ends_with_the_session(world: World) -> None:
    job = str(world.ann.post("/v1/jobs", json=SPEC).json()["id"])
    key = Key(job, place(world.database, job))
    observed = {"job_id": job, "epoch": 1, "phase": "running"}
    world.node.post("/v1/node/heartbeat", json=heartbeat(observed)).raise_for_status()
    entry = world.ann.post(f"/v1/workbenches/{job}/entry").raise_for_status().json()
    ticket = entry["url"].partition("#")[2]
    trade = world.process.transact
    with pytest.raises(Forbidden):
        trade(use_ticket, Key(job, 2), ticket, now=utc_now())
    cookie = trade(use_ticket, key, ticket, now=utc_now())
    with pytest.raises(Forbidden):
        trade(use_ticket, key, ticket, now=utc_now())
    assert _is_valid(world.process, key, digest(cookie))
    assert not _is_valid(world.process, Key(job, 2), digest(cookie))
    assert not _is_valid(world.process, key, digest(ticket))
    world.ann.delete("/v1/sessions/current").raise_for_status()
    assert not _is_valid(world.process, key, digest(cookie))
