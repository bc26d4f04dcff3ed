"""SDK and command line against the real API, as a process of its own, on SQLite.

A node is enrolled over the node protocol, so that jobs can be planned and queued; nobody runs them.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.flaky import at_random, flaky
from tests.forked import Forked, origin
from tests.running import wait_for
from trainyard import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotSignedIn,
    Trainyard,
    TrainyardError,
)
from trainyard.cli.app import app
from trainyard.packing import pack
from trainyard.progress import FinalJob, follow
from trainyard.resources.sessions import sign_in, sign_in_by_link, sign_out, start_first
from trainyard.transport.config import Access
from trainyard.transport.connection import Connection

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt-ddp.yaml"
LAB = Path(__file__).parents[2] / "examples" / "agendas" / "lab-1.yaml"
MAX_DATASET_BYTES = 4_000_000
PASSWORD = "correct horse battery"
INVENTORY = {
    "hostname": "box",
    "cores": 4,
    "memory_gib": 16.0,
    "gpus": [],
    "slots": 4,
    "python": "3.11.9",
    "torch": "2.13.0",
}
pytestmark = [pytest.mark.db, pytest.mark.xdist_group("client")]  # one API for all of them


RULES = """
policy: {id: lab, version: 1, zone: Europe/Berlin}
pools: {all-of-it: {class: cpu4}}
bands: {night: {local: ["22:00", "06:00"]}}
windows: [{pool: all-of-it, usable: ["%s", "%s"]}]
quotas: {main: {max_node_hours: {all: 10}}}
"""


class RealApi:
    """One API process on a database of its own; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Forked | None = None
        self.token = ""

    def start(self) -> None:
        """Start it and wait until it answers."""
        environment = {
            "TRAINYARD_DATABASE_URL": f"sqlite:///{self.folder / 'trainyard.db'}",
            "TRAINYARD_REDIS_URL": f"unix://{self.folder / 'no-redis.sock'}",
            "TRAINYARD_STORE": str(self.folder / "store"),
            "TRAINYARD_PORT": str(self.port),
            "TRAINYARD_LOGINS_PER_MINUTE": "1000",
            "TRAINYARD_MAX_DATASET_BYTES": str(MAX_DATASET_BYTES),
            "TRAINYARD_SUBMISSIONS_PER_MINUTE": "1000",
        }
        with open(self.folder / "api.log", "ab") as log:
            complete = {**os.environ, **environment}
            self.process = origin().start("api.main", environment=complete, log=log)
        wait_for(self._answers, what="the API", within_s=60)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def first_start_link(self) -> str:
        """What it printed, having no users."""
        found = re.findall(r"http\S+secret=\S+", (self.folder / "api.log").read_text())
        return str(found[-1])

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "api.log").read_text()
        try:
            return httpx2.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False


@pytest.fixture(scope="module")
def api(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    """The API with its first administrator, ada, and one node of four CPU slots."""
    folder = tmp_path_factory.mktemp("api")
    shutil.copy(migrated_sqlite, folder / "trainyard.db")
    running = RealApi(folder)
    try:
        running.start()
        secret = running.first_start_link().rpartition("=")[2]
        with closing(Connection(Access(running.url, None))) as nobody:
            running.token = start_first(nobody, secret, "ada", PASSWORD).secret
        with Trainyard(running.url, running.token) as ada:
            enrol(running, ada)
        yield running
    finally:
        running.kill()


def enrol(running: RealApi, ada: Trainyard) -> None:
    """Join a node and let it report once."""
    token = ada.admin.enrol("box", node_class="cpu4").token
    joined = httpx2.post(
        f"{running.url}/v1/node/enrol", json={"token": token, "inventory": INVENTORY}, timeout=30
    ).raise_for_status()
    heartbeat = {
        "incarnation": "one",
        "boot_id": "boot-1",
        "inventory": INVENTORY,
        "telemetry": {"cpu_pct": 1.0, "memory_used_gib": 1.0, "disk_free_gib": 9.0},
        "attempts": [],
        "clean": True,
    }
    httpx2.post(
        f"{running.url}/v1/node/heartbeat",
        json=heartbeat,
        headers={"Authorization": f"Bearer {joined.json()['node_token']}"},
        timeout=30,
    ).raise_for_status()


@pytest.fixture
def ada(api: RealApi) -> Iterator[Trainyard]:
    """An administrator."""
    with Trainyard(api.url, api.token) as client:
        yield client


def test_a_job_is_planned_submitted_and_steered(ada: Trainyard) -> None:
    planned = ada.jobs.plan(EXAMPLE)
    assert planned.chosen == "cpu4"
    assert planned.plans[0].plan.world_size == 4
    assert not planned.plans[0].plan.problems

    job = ada.jobs.create(EXAMPLE)
    assert (job.state, job.user, job.steps) == ("queued", "ada", 400)
    assert ada.jobs.get(job.id).id == job.id
    assert ada.jobs.pause(job.id).state == "paused"
    assert ada.jobs.resume(job.id).state == "queued"
    with pytest.raises(Conflict):
        ada.jobs.requeue(job.id)  # it is not on a node
    clone = ada.jobs.clone(job.id, {"name": "again", "training": {"seed": 2}})
    assert (clone.cloned_from, clone.name) == (job.id, "again")
    assert clone.spec["training"]["seed"] == 2
    assert ada.jobs.cancel(job.id).state == "cancelled"
    assert ada.jobs.cancel(clone.id).is_final
    assert [event.to_state for event in ada.jobs.events(job.id)][-1] == "cancelled"
    assert {found.id for found in ada.jobs.list(state="cancelled")} >= {job.id, clone.id}
    assert ada.jobs.attempts(job.id) == []
    assert ada.jobs.metrics(job.id, ["loss"], resolution=100).series == ()
    assert ada.jobs.logs(job.id, rank=0, tail=10).lines == ()
    assert ada.jobs.checkpoints(job.id) == []
    assert ada.jobs.artifacts(job.id) == []


def test_a_mapping_plans_as_its_yaml_does(ada: Trainyard) -> None:
    job = ada.jobs.create(EXAMPLE)
    ada.jobs.cancel(job.id)
    assert ada.jobs.plan(job.spec).plans[0].plan == ada.jobs.plan(EXAMPLE).plans[0].plan


def test_a_wrong_job_names_the_field_and_the_line(ada: Trainyard) -> None:
    text = EXAMPLE.read_text().replace("heads: 4", "heads: 7").replace("wall_time: 20min", "")
    with pytest.raises(Invalid) as caught:
        ada.jobs.create(text)
    assert any("wall_time" in item.param for item in caught.value.errors) or (
        "wall_time" in str(caught.value)
    )
    with pytest.raises(Invalid, match=r"model\.heads.*160|160.*7"):
        ada.jobs.create(EXAMPLE.read_text().replace("heads: 4", "heads: 7"))
    with pytest.raises(Invalid, match=r"[Ll]ine 1"):
        ada.jobs.create("name: *alias\n")


def test_many_pages_are_one_list(ada: Trainyard) -> None:
    made = [ada.jobs.create(EXAMPLE).id for _ in range(5)]
    for job_id in made:
        ada.jobs.cancel(job_id)
    newest = list(ada.jobs.list(limit=3))
    assert [job.id for job in newest] == made[:1:-1]
    path = "/v1/jobs"
    first = ada.connection.get(path, limit=2)
    assert first["has_more"] is True


def test_an_upload_that_is_broken_off_again_and_again_arrives_whole(
    api: RealApi, ada: Trainyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.resources.datasets.RESUMABLE_FROM", 1)
    monkeypatch.setattr("trainyard.resources.uploads.PART", 300_000)
    text = tmp_path / "long.txt"
    text.write_bytes(b"".join(b"%07d\n" % number for number in range(300_000)))
    size, seen = text.stat().st_size, list[int]()

    def moment(_: float) -> None:
        time.sleep(0.05)  # a server that is busy needs it to see the break

    def killed(sent: int, _: int) -> None:
        if seen.append(sent) or sent > 1_000_000:
            raise KeyboardInterrupt

    with flaky(api.port, at_random(7, longest=500_000)) as proxy:
        hasty = Trainyard(proxy.url, api.token, sleep=moment)
        with hasty, pytest.raises(KeyboardInterrupt):
            hasty.datasets.upload(text, "long", progress=killed)
        [upload] = ada.uploads.list()
        assert (upload.path, upload.size) == ("long.txt", size)
        there = upload.received
        assert 0 < there <= seen[-1]
        api.kill()
        api.start()  # which has lost the hash of what is there
        seen.clear()
        with Trainyard(proxy.url, api.token, sleep=moment) as client:
            made = client.datasets.upload(text, "long", progress=lambda sent, _: seen.append(sent))
        assert proxy.breaks >= 8
    assert seen[0] >= there  # and not from the beginning
    assert (made.size, made.lines) == (size, 300_000)
    stored = hashlib.sha256(text.read_bytes()).hexdigest()
    assert (api.folder / "store" / stored[:2] / stored).stat().st_size == size
    assert ada.uploads.list() == []
    ada.datasets.delete("long")


def test_datasets_are_uploaded_listed_and_deleted(ada: Trainyard, tmp_path: Path) -> None:
    text = tmp_path / "poem.txt"
    text.write_text("Tyger Tyger, burning bright,\n" * 200)
    seen: list[int] = []
    made = ada.datasets.upload(text, "poem", progress=lambda sent, total: seen.append(sent))
    assert (made.name, made.size, seen[-1]) == ("poem", text.stat().st_size, made.size)
    assert ada.datasets.get("poem").id == made.id
    assert {"poem", "python-stdlib"} <= {dataset.name for dataset in ada.datasets.list()}
    binary = tmp_path / "image.bin"
    binary.write_bytes(b"abc\x00\xff" * 100)
    with pytest.raises(Invalid):
        ada.datasets.upload(binary, "image")
    ada.datasets.delete("poem")
    with pytest.raises(NotFound):
        ada.datasets.get("poem")


def test_a_workspace_is_filled_looked_at_and_taken_back(
    api: RealApi, ada: Trainyard, tmp_path: Path
) -> None:
    project = tmp_path / "my project"
    (project / "süß").mkdir(parents=True)
    (project / ".env").write_text("A=1")
    (project / "süß" / "run.sh").write_text("#!/bin/sh")
    (project / "süß" / "run.sh").chmod(0o755)
    runner = CliRunner()
    env = {"TRAINYARD_URL": api.url, "TRAINYARD_TOKEN": api.token, "COLUMNS": "200"}

    def run(*words: str) -> tuple[int, str]:
        done = runner.invoke(app, ["workspace", *words], env=env)
        return done.exit_code, done.output

    assert run("put", str(project), "--to", "work")[0] == 0
    listed = json.loads(run("list", "--all", "--json")[1])
    assert [entry["path"] for entry in listed] == [
        "work",
        "work/my project",
        "work/my project/.env",
        "work/my project/süß",
        "work/my project/süß/run.sh",
    ]
    code, said = run("get", "work", str(tmp_path / "back"))
    assert (code, "Fetched 2 files" in said) == (0, True)
    assert (tmp_path / "back" / "my project" / ".env").read_text() == "A=1"
    assert os.access(tmp_path / "back" / "my project" / "süß" / "run.sh", os.X_OK)
    assert run("get", "work/my project/.env", str(tmp_path / "one"))[0] == 0
    assert (tmp_path / "one").read_text() == "A=1"
    assert "5 of 100,000 files and folders" in run("show")[1]
    [first] = json.loads(run("snapshots", "--json")[1])
    assert run("rm", "work/my project")[0] == 0
    assert run("rm", "work/my project")[0] == 4
    assert run("put", str(tmp_path / "nothing"))[0] == 2
    assert run("restore", first["id"])[0] == 4  # the deletion was the same edit
    assert run("restore", json.loads(run("snapshots", "--json")[1])[0]["id"])[0] == 0
    ada.workspace.delete("work")
    assert ada.workspace.get().files == 0


def test_an_upload_that_is_refused_early_still_says_why(ada: Trainyard, tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    large.write_bytes(b"all good so far\n" * 2_000_000)  # 32 MB: far beyond any socket buffer
    with pytest.raises(Invalid) as caught:
        ada.datasets.upload(large, "large")
    assert caught.value.status == 413
    large.write_bytes(b"\x00" + b"x" * (MAX_DATASET_BYTES - 1))
    with pytest.raises(Invalid) as caught:
        ada.datasets.upload(large, "large")
    assert caught.value.status == 422


def test_a_lease_is_booked_seen_and_given_back(ada: Trainyard) -> None:
    start = (datetime.now(UTC) + timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
    lease = ada.leases.book(start, 2, node_class="cpu4")
    assert (lease.node, lease.hold_start) == ("box", start)
    with pytest.raises(Conflict):
        ada.leases.book(start, 1, node="box")
    hours = ada.leases.availability(start, 3, node_class="cpu4").hours
    assert [hour.free for hour in hours] == [0, 0, 1]
    assert ada.leases.get(lease.id).state == "booked"
    ada.leases.cancel(lease.id)
    assert ada.leases.get(lease.id).state == "cancelled"
    assert lease.id in [found.id for found in ada.leases.list(limit=5)]


def test_what_the_rules_make_of_the_hours_is_told(ada: Trainyard) -> None:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    days = [f"{start + timedelta(days=number):%Y-%m-%dT00:00}" for number in (-1, 5)]
    ada.admin.add_user("cy", role="user", password=PASSWORD)  # quotas are not for staff
    ada.policies.apply(RULES % tuple(days))
    [found] = ada.policies.bands(start, 48)
    assert (found.policy, found.nodes, found.bands[0].name) == ("lab", ("box",), "night")
    assert found.windows is not None
    [forecast] = ada.leases.forecast()
    assert forecast.closes_at == found.windows[0].ends_at
    assert sum(day.free_hours for day in forecast.days) == pytest.approx(forecast.free_hours, 0.01)
    ada.policies.withdraw("lab")
    assert ada.leases.forecast() == []


def test_a_lab_is_planned_submitted_looked_at_and_cancelled(
    api: RealApi, ada: Trainyard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_URL", api.url)
    monkeypatch.setenv("TRAINYARD_TOKEN", api.token)
    runner = CliRunner()
    lab, wrong = tmp_path / "lab.yaml", tmp_path / "wrong.yaml"
    lab.write_text(LAB.read_text().replace("layers: 12, width: 768", "layers: 4, width: 96"))
    block = ["agenda", "plan", str(lab), "--class", "cpu4", "--hours"]
    fits = runner.invoke(app, [*block, "3"])
    assert (fits.exit_code, "It fits with 11min" in fits.stdout) == (0, True), fits.output
    over = runner.invoke(app, [*block, "2"])
    assert (over.exit_code, "It is too long by 49min" in over.stdout) == (3, True), over.output
    wrong.write_text(lab.read_text().replace("strategy: fsdp", "strategy: fsdb"))
    answer = runner.invoke(app, ["agenda", "plan", str(wrong), "--class", "cpu4", "--hours", "3"])
    assert answer.exit_code == 2
    assert "job 3 (lab-1 fsdp): parallelism.strategy (line 31)" in answer.output

    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=30)
    lease = ada.leases.book(start, 3, node_class="cpu4").id
    submitted = runner.invoke(app, ["agenda", "submit", str(lab), "--lease", lease])
    assert submitted.exit_code == 0, submitted.output
    (agenda,) = ada.agendas.list(lease=lease)
    assert f"Submitted 5 jobs as {agenda.id}" in submitted.stdout
    assert agenda.jobs[0].planned_start == start
    assert runner.invoke(app, ["agenda", "submit", str(lab), "--lease", lease]).exit_code == 5
    shown = runner.invoke(app, ["agenda", "show", agenda.id])
    assert (shown.exit_code, shown.stdout.count("waiting")) == (0, 5)
    assert {job.standing for job in ada.agendas.cancel(agenda.id).jobs} == {"cancelled"}
    assert runner.invoke(app, ["agenda", "follow", agenda.id]).exit_code == 1
    ada.leases.cancel(lease)


def test_people_tokens_and_links(api: RealApi, ada: Trainyard) -> None:
    bob = ada.admin.add_user("bob", role="user", password=PASSWORD)
    assert bob.name in [user.name for user in ada.admin.users()]
    with closing(Connection(Access(api.url, None))) as connection:
        made = sign_in(connection, "bob", PASSWORD)
        with Trainyard(api.url, made.secret) as his:
            token = his.tokens.create("script", expires_in_days=3)
            assert token.secret not in repr(token)
            assert [found.name for found in his.tokens.list()] == ["script"]
            with pytest.raises(Forbidden):
                list(his.admin.users())
            job = ada.jobs.create(EXAMPLE)
            with pytest.raises(NotFound):
                his.jobs.get(job.id)
            ada.jobs.cancel(job.id)
            with Trainyard(api.url, token.secret) as script:
                assert script.me().user.name == "bob"
                his.tokens.revoke(token.id)
                with pytest.raises(NotSignedIn, match="trainyard login"):
                    script.me()
            sign_out(his.connection)
            with pytest.raises(NotSignedIn):
                his.me()
        link = ada.admin.login_link("bob")
        assert sign_in_by_link(connection, link.secret).user.name == "bob"
        with pytest.raises(TrainyardError):
            sign_in_by_link(connection, link.secret)  # it works once
        assert ada.admin.change_user("bob", disabled=True).disabled
        with pytest.raises(NotSignedIn, match=r"password"):
            sign_in(connection, "bob", PASSWORD)
    assert "user.add" in [entry.kind for entry in ada.admin.audit(limit=20)]


def test_a_node_is_drained_and_used_again(ada: Trainyard) -> None:
    assert ada.admin.drain("box").state in ("draining", "maintenance")
    assert ada.admin.resume("box").state == "ready"
    assert ada.nodes.get("box").node_class == "cpu4"
    assert [node.name for node in ada.nodes.list()] == ["box"]


def test_the_stream_of_a_job_that_ends_ends(ada: Trainyard) -> None:
    job = ada.jobs.create(EXAMPLE)
    events = ada.jobs.stream(job.id)
    first = next(events)
    ada.jobs.cancel(job.id)
    rest = list(events)
    kinds = [first.kind, *(event.kind for event in rest)]
    assert kinds[-1] == "end"
    assert set(kinds) <= {"event", "job", "end"}
    assert rest[-1].data["state"] == "cancelled"
    told = [e.data["message"] for e in (first, *rest) if e.kind == "event"]
    assert len(told) == len(set(told)) == len(list(ada.jobs.events(job.id)))


def test_following_survives_a_killed_api(api: RealApi, ada: Trainyard) -> None:
    job = ada.jobs.create(EXAMPLE)
    ended: list[FinalJob] = []
    console = Console(record=True, width=200)
    with Trainyard(api.url, api.token) as watching:
        follower = threading.Thread(
            target=lambda: ended.append(follow(watching, job.id, console)), daemon=True
        )
        follower.start()
        wait_for(lambda: "gpt-ddp" in said(console), what="the headline")
        wait_for(lambda: "ueued" in said(console), what="the first event")
        api.kill()
        wait_for(
            lambda: "Connection to the server lost" in said(console), what="the loss being said"
        )
        api.start()
        wait_for(lambda: "Connected again" in said(console), what="the return being said")
        ada.jobs.cancel(job.id)
        follower.join(60)
    assert [final.job.state for final in ended] == ["cancelled"]


def test_the_command_line_speaks_to_the_real_thing(
    api: RealApi, ada: Trainyard, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CliRunner()
    signed_in = runner.invoke(app, ["login", api.url], input=f"ada\n{PASSWORD}\n")
    assert signed_in.exit_code == 0, signed_in.output
    submitted = runner.invoke(app, ["submit", str(EXAMPLE)])
    assert submitted.exit_code == 0, submitted.output
    found = re.search(r"job_[0-9a-z]{26}", submitted.stdout)
    assert found is not None
    for command in (
        ["whoami"],
        ["plan", str(EXAMPLE)],
        ["jobs"],
        ["show", found[0]],
        ["logs", found[0]],
        ["metrics", found[0]],
        ["nodes"],
        ["datasets", "list"],
        ["leases", "list"],
        ["tokens", "list"],
        ["sessions", "list"],
        ["admin", "users"],
        ["admin", "audit"],
        ["cancel", found[0]],
        ["checkpoints", found[0]],
        ["artifacts", found[0]],
    ):
        ran = runner.invoke(app, command)
        assert ran.exit_code == 0, ran.output
    assert runner.invoke(app, ["follow", found[0]]).exit_code == 1  # it was cancelled
    assert runner.invoke(app, ["cancel", "job_" + "0" * 26]).exit_code == 4
    assert runner.invoke(app, ["logout"]).exit_code == 0
    assert runner.invoke(app, ["whoami"]).exit_code == 3


def said(console: Console) -> str:
    """What was printed so far."""
    return console.export_text(clear=False)


def test_a_folder_of_code_up_to_the_documented_size_is_taken_and_no_larger_one(
    api: RealApi, ada: Trainyard, tmp_path: Path
) -> None:
    """50 MiB as one archive, or 5,000 files."""
    (tmp_path / "train.py").touch()
    data = tmp_path / "data.bin"
    beside = len(pack(tmp_path).content)
    entry = 30 + 46 + 2 * len("data.bin")  # what a zip says of a file
    data.write_bytes(bytes((50 << 20) - beside - entry))
    taken = ada.code.upload(pack(tmp_path))
    assert (taken.size, list(taken.paths)) == (50 << 20, ["data.bin", "train.py"])
    larger = replace(pack(tmp_path), content=bytes((50 << 20) + 1))
    with pytest.raises(TrainyardError, match="the limit is 52,428,800"):
        ada.code.upload(larger)
    data.unlink()
    for number in range(4999):
        (tmp_path / f"{number}.txt").touch()
    assert len(ada.code.upload(pack(tmp_path)).paths) == 5000
