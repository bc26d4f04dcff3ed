"""An agenda's page: the answer first, a bar for each job against the lease, what is late marked."""

import re
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.agendas.schemas import AgendaJobView, AgendaView
from dashboard.pages.agendas import Stretch, bars
from tests.dashboard.fake_api import NOW, FakeApi, job, lease
from trainyard.transport.decoding import decode
from trainyard.views import Agenda

PAGE = "/agendas/agenda_01aaaaaaaaaaaaaaaaaaaaaaaa"
HOSTILE = "<script>alert(1)</script>\u202e"


def minute(number: float) -> Any:
    return NOW + timedelta(minutes=number)


def member(position: int, planned: float, length: float, **changes: Any) -> AgendaJobView:
    """A job that is planned and expected from minute `planned` of the lease on."""
    fields: dict[str, Any] = {
        "position": position,
        "job": f"job_0{position}aaaaaaaaaaaaaaaaaaaaaaaa",
        "name": f"part {position}",
        "nodes": 1,
        "slots": 2,
        "wall_time_s": int(length * 60),
        "expected_s": None,
        "standing": "waiting",
        "reason": "Waits for its turn.",
        "step": 0,
        "steps": 400,
        "planned_start": minute(planned),
        "planned_end": minute(planned + length),
        "start": minute(planned),
        "end": minute(planned + length),
        "likely_end": None,
        "late_s": 0,
        "fits": True,
    }
    return AgendaJobView.model_validate({**fields, **changes})


def agenda(*jobs: AgendaJobView, **changes: Any) -> AgendaView:
    """A lab in a lease of 100 usable minutes."""
    fields: dict[str, Any] = {
        "id": PAGE.rpartition("/")[2],
        "name": "lab-1",
        "user": "ada",
        "lease": "lease_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "node": "east-01",
        "leases": ["lease_01aaaaaaaaaaaaaaaaaaaaaaaa"],
        "node_class": "cpu2",
        "nodes": 1,
        "slots": 2,
        "side_by_side": False,
        "on_failure": "go_on",
        "rules": "One after the other; if one fails, the others continue.",
        "begins": NOW,
        "usable_end": minute(100),
        "fits": True,
        "spare_s": 600,
        "likely_spare_s": None,
        "first_cut": None,
        "summary": "It fits with 10min to spare, even if every job uses up its wall time.",
        "jobs": list(jobs) or [member(1, 0, 40, standing="running"), member(2, 41, 49)],
        "is_final": False,
        "created_at": NOW,
    }
    return AgendaView.model_validate({**fields, **changes})


OVER = agenda(
    member(1, 0, 60, start=minute(20), end=minute(80), late_s=1200, standing="running"),
    member(2, 61, 30, start=minute(81), end=minute(125), late_s=2040, fits=False),
    fits=False,
    spare_s=-1500,
    first_cut=2,
    summary="It is too long by 25min if every job uses up its wall time: part 2 would be stopped.",
)


@pytest.fixture
def shown(api: FakeApi) -> FakeApi:
    api.put("/v1/agendas", [agenda()])
    api.put(f"/v1{PAGE}", agenda())
    return api


def row(text: str, name: str) -> str:
    (found,) = [
        one for one in re.findall(r"<tr[ >].*?</tr>", text, re.S) if f">{name}</bdi>" in one
    ]
    return found


def test_bars_are_where_the_jobs_are_and_break_where_the_lease_ends() -> None:
    first, second = bars(decode(Agenda, OVER.model_dump(mode="json")))
    assert first.planned == Stretch(0, 48)  # 125 minutes are 100 per cent
    assert (first.within, first.after) == (Stretch(16, 48), None)
    assert (second.within, second.after) == (Stretch(64.8, 15.2), Stretch(80, 20))


@pytest.mark.usefixtures("shown")
def test_it_answers_first_and_shows_every_job_with_its_bar(page: TestClient) -> None:
    text = page.get(PAGE).text
    assert text.index("It fits with 10min to spare") < text.index("<table")
    assert "if one fails, the others continue" in text
    assert "left:40.2%;--v:48.04" in row(text, "part 2")
    assert '<span class="badge" data-state="running">running</span>' in row(text, "part 1")
    assert "not in time" not in text
    assert 'id="agenda-document"' in text


def test_what_is_late_and_what_does_not_fit_is_marked(shown: FakeApi, page: TestClient) -> None:
    shown.put(f"/v1{PAGE}", OVER)
    text = page.get(f"{PAGE}/report", headers={"hx-request": "true"}).text
    assert text.startswith('<div id="report"')
    assert '<strong class="down"><bdi data-said>It is too long by 25min' in text
    assert "20 min</strong>" in row(text, "part 1")
    assert "not in time" not in row(text, "part 1")
    assert '<strong class="down">not in time</strong>' in row(text, "part 2")
    assert "left:80.0%;--v:20.0;background:var(--bad)" in row(text, "part 2")


def test_each_of_its_leases_names_an_agenda_over_several_nodes(
    shown: FakeApi, page: TestClient
) -> None:
    two = ["lease_01aaaaaaaaaaaaaaaaaaaaaaaa", "lease_02aaaaaaaaaaaaaaaaaaaaaaaa"]
    wide = agenda(member(1, 0, 40, nodes=2), leases=two, nodes=2)
    shown.put("/v1/agendas", [wide])
    shown.put(f"/v1{PAGE}", wide)
    shown.put("/v1/leases", [lease(id=one) for one in two])
    assert page.get("/leases").text.count(f'href="{PAGE}"') == 2
    text = page.get(PAGE).text
    assert 'on <a href="/nodes/east-01">east-01</a> and 1 more' in text
    assert "on 2 nodes" in row(text, "part 1")


def test_what_waits_can_be_cancelled(shown: FakeApi, page: TestClient) -> None:
    assert "Cancel 1 job<" in page.get(PAGE).text
    shown.put(f"/v1{PAGE}/cancel", agenda(), method="POST")
    answer = page.post(f"{PAGE}/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
    shown.put(f"/v1{PAGE}", agenda(member(1, 0, 40, standing="done"), is_final=True))
    assert "/cancel" not in page.get(PAGE).text


def test_agendas_are_listed_and_found_from_their_lease_and_their_jobs(
    shown: FakeApi, page: TestClient
) -> None:
    shown.put("/v1/leases", [lease(id="lease_01aaaaaaaaaaaaaaaaaaaaaaaa")])
    for path in ("/agendas", "/leases"):
        text = page.get(path).text
        assert f'href="{PAGE}"' in text
        assert "It fits with 10min to spare" in text
    member = job(agenda=PAGE.rpartition("/")[2])
    shown.show(member)
    assert f'href="{PAGE}"' in page.get(f"/jobs/{member.id}").text
    shown.put("/v1/agendas", [])
    assert "No agendas yet" in page.get("/agendas").text


def test_names_of_others_are_inert(shown: FakeApi, page: TestClient) -> None:
    hostile = agenda(member(1, 0, 40, name=HOSTILE, reason=HOSTILE), name=HOSTILE)
    shown.put(f"/v1{PAGE}", hostile)
    shown.put("/v1/agendas", [hostile])
    for path in (PAGE, "/agendas"):
        text = page.get(path).text
        assert "<script>alert" not in text
        assert "\u202e" not in text
