"""A script that wants more than its own: it gets nothing and leaves nothing, at every level."""

import json
import os
import re
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.states import Outcome
from core.wire.messages import ExitRecord, StopOrder
from tests.worker.fake_api import TOKEN, FakeApi
from tests.worker.nodes import Node
from tests.worker.script_orders import output_of, script_order
from worker.node.attempts import Key
from worker.scripts import sandbox
from worker.scripts.sandbox import Level, why_not
from worker.scripts.sandbox_users import take_user, try_to_take

HOSTILE = (Path(__file__).parents[1] / "hostile.py").read_text()
FORKS = """
import os, time
children = 0
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        children += 1
except OSError as error:
    print("after", children, error.strerror, flush=True)
"""
FILLS = """
import os, time
folder = os.environ["TRAINYARD_OUTPUT"]
for number in range(10_000):
    with open(f"{folder}/{number}", "wb") as file:
        file.write(bytes(1 << 20))
    time.sleep(0.01)
"""
STAYS = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
print("here", flush=True)
while True:
    time.sleep(1)
"""
PRINTS = """
import os, sys, time
print("the beginning", flush=True)
line, most = b"y" * 1023 + b"\\n", 0
for _ in range(24):  # in all less than the 0.03 GiB that one file may have
    sys.stdout.buffer.write(1024 * line)
    sys.stdout.buffer.flush()
    while os.fstat(1).st_blocks > 6 << 11:  # 6 MiB: until the disk has the middle back
        time.sleep(0.01)
    most = max(most, os.fstat(1).st_blocks)
print("the end, never more than", most * 512)
"""
FORGES = """
import json, os
from trainyard.run import log
with open(os.path.join(os.environ["TRAINYARD_RUN"], "metrics.jsonl"), "a") as file:
    for line in ({"step": 1, "loss": 0.5, "job_id": "job_other", "rank": 7}, {"step": -1, "x": 1},
                 {"step": "2", "x": 1}, {"loss": 3}, [1], {"step": 1 << 70, "x": 1},
                 {"step": 2, "a b/<c>": 2.0}):
        file.write(json.dumps(line) + "\\n")
    file.write("no json\\n" + "x" * 100_000 + "\\n")
    file.write('{"step": 3, "loss": NaN}\\n')
log(step=4, loss=1)
"""
PROCESSES = 40


@dataclass(frozen=True)
class Tried:
    """What came of all hostile scripts on one node."""

    api: FakeApi
    node: Node
    records: dict[str, ExitRecord]
    found: dict[str, Any]
    files: list[str]


def key_of(name: str) -> Key:
    return Key(f"job_{name}", 1)


@pytest.fixture(
    scope="module",
    params=[Level.BUBBLEWRAP, pytest.param(Level.NAMESPACES, marks=pytest.mark.slow)],
    ids=str,
)
def tried(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tried]:
    """All of them side by side, to their end."""
    level = request.param
    reason = why_not(level)
    if reason:
        pytest.skip(f"no sandbox of this level here: {reason}")
    folder = tmp_path_factory.mktemp("hostile")
    api, others = FakeApi(), folder / "of-somebody-else.txt"
    others.write_text("private")
    node = Node(folder / "node", api)
    files = [str(node.folder.identity), str(others), str(node.log), str(Path.home())]
    name = f"trainyard-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        node.start(
            warm=False,
            TRAINYARD_SANDBOX=str(level),
            TRAINYARD_SCRIPT_DISK_GIB="0.03",
            TRAINYARD_LOG_MIB="1",
            TRAINYARD_SCRIPT_PROCESSES=str(PROCESSES),
            A_TOKEN_OF_THE_WORKER="must not be seen",
        )
        try:
            words = [*files, "--", api.url.removeprefix("http://"), name]
            for script, source, arguments in (
                ("hostile", HOSTILE, words),
                ("forks", FORKS, []),
                ("fills", FILLS, []),
                ("stays", STAYS, []),
                ("prints", PRINTS, []),
                ("forges", FORGES, []),
            ):
                api.order(script_order(api, source, f"job_{script}", arguments=arguments))
            api.wait_for(lambda: "here" in output_of(api, "job_stays"))
            stop = StopOrder(reason=Outcome.CANCELLED, grace_s=0)
            api.order(script_order(api, STAYS, "job_stays", stop=stop, stop_in_s=1, kill_after_s=1))
            names = ("hostile", "forks", "fills", "stays", "prints", "forges")
            records = {name: api.wait_for_exit(key_of(name)) for name in names}
            api.wait_for(
                lambda: all((o := api.observed(key_of(n))) is not None and o.kept for n in names)
            )
            said = output_of(api, "job_hostile")
            assert said.startswith("{"), (said, records["hostile"], node.log.read_text()[-2000:])
            yield Tried(api, node, records, json.loads(said), files)
        finally:
            node.close()
            api.close()


def test_it_sees_no_credential_and_nobodys_files(tried: Tried) -> None:
    environment = tried.found["environment"]
    told = {name for name in environment if name.startswith("TRAINYARD")}
    assert told == {"TRAINYARD_OUTPUT", "TRAINYARD_RUN"}
    everything = json.dumps(tried.found)
    assert TOKEN not in everything
    assert "must not be seen" not in everything
    for path in [*tried.files, "shadow"]:
        assert "Error" in tried.found[f"read {path}"], path
    assert "Error" in tried.found["homes"]
    assert len(tried.found["processes"]) < 6  # its own; the machine has many more
    for module in ("worker", "api", "core", "strategies", "trainyard.transport.connection"):
        seen = tried.found[f"import {module}"]
        assert seen == "None" or "Error" in seen or "origin=None" in seen, (module, seen)
    if os.geteuid() == 0:
        assert 60_578 <= tried.found["uid"] <= 61_183


def test_it_reaches_nobody(tried: Tried) -> None:
    assert tried.found["interfaces"] == ["lo"]
    for name in ("api", "internet", "abstract socket"):
        assert "Error" in tried.found[name], name


def test_it_gains_no_rights(tried: Tried) -> None:
    for name in ("mount", "user namespace", "network namespace", "trace", "bpf"):
        assert tried.found[name] == "Operation not permitted", name
    for name in ("become root", "write system", "write python", "write root", "cgroup"):
        assert "Error" in tried.found[name], (name, tried.found[name])
    assert "Error" in tried.found["terminal"]
    assert "Error" in tried.found["swap log"]
    assert "Error" in tried.found["unlink log"]


def test_links_lead_nowhere(tried: Tried) -> None:
    key = key_of("hostile")
    assert tried.records["hostile"].outcome is Outcome.SUCCEEDED
    assert [file.path for file in tried.api.artifacts[key]] == ["fine.txt"]
    assert key not in tried.api.lines
    assert all(TOKEN.encode() not in content for content in tried.api.files.values())


def test_it_speaks_for_no_other_job(tried: Tried) -> None:
    assert set(tried.api.lines) == {key_of("forges")}
    assert tried.api.lines[key_of("forges")] == [
        {"step": 1, "loss": 0.5, "rank": 7},
        {"step": 2, "a_b/_c_": 2.0},
        {"step": 3, "loss": None},
        {"step": 4, "loss": 1},
    ]
    assert tried.records["forges"].outcome is Outcome.SUCCEEDED


def test_a_fork_bomb_is_bounded_and_ends_with_its_sandbox(tried: Tried) -> None:
    said = output_of(tried.api, "job_forks")
    assert "temporarily unavailable" in said, said
    assert int(said.split()[1]) <= PROCESSES
    assert tried.records["forks"].outcome is Outcome.SUCCEEDED


def test_a_full_disk_ends_the_script_that_fills_it(tried: Tried) -> None:
    record = tried.records["fills"]
    assert record.outcome is Outcome.USER_ERROR
    assert "GiB of disk" in record.reason


def test_what_it_prints_without_end_is_left_out_but_for_its_beginning_and_end(
    tried: Tried,
) -> None:
    assert tried.records["prints"].outcome is Outcome.SUCCEEDED, tried.records["prints"]
    said = output_of(tried.api, "job_prints")
    assert said.startswith("the beginning\n")
    assert re.search(
        r"\n\[2\d,\d{3},\d{3} bytes are left out here: this node keeps 1\.0 MiB of a log", said
    )
    assert "the end, never more than" in said
    assert len(said) < 3 << 20


def test_it_can_not_stay(tried: Tried) -> None:
    record = tried.records["stays"]
    assert record.outcome is Outcome.CANCELLED
    assert "killed" in record.reason


def has_ended(node: Node, key: Key) -> bool:
    return not node.processes(key)


def test_nothing_of_them_is_left(tried: Tried) -> None:
    last = tried.api.last()
    assert last is not None
    assert last.clean
    for name in tried.records:
        attempt = tried.node.attempt(key_of(name))
        left = {path.name for path in (attempt.path / "sandbox").iterdir()}
        assert left <= {"rank"}, left
        assert tried.node.trainers(key_of(name)) == set()
        # The shim ends after it has told the end.
        tried.api.wait_for(partial(has_ended, tried.node, key_of(name)))
        logs = attempt.rank_logs(0) / "stdout.log"
        user = try_to_take(logs.stat().st_uid) if os.geteuid() == 0 else None
        if user is not None:  # None: it is another script's by now
            assert [pid for pid in os.listdir("/proc") if _uid(pid) == user.uid] == []
            user.release()


def _uid(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a worker without rights runs scripts as itself")
def test_two_platforms_on_a_machine_share_no_user(tmp_path: Path) -> None:
    key, uids = key_of("here"), []
    apis = [FakeApi(), FakeApi()]
    nodes = [Node(tmp_path / str(number), api) for number, api in enumerate(apis)]
    try:
        for api, node in zip(apis, nodes, strict=True):
            node.start(warm=False)
            api.order(script_order(api, STAYS, key.job_id))  # of one name on both
        for api, node in zip(apis, nodes, strict=True):
            api.wait_for(lambda api=api: "here" in output_of(api, key.job_id))  # type: ignore[misc]
            uids.append((node.attempt(key).rank_logs(0) / "stdout.log").stat().st_uid)
    finally:
        for api, node in zip(apis, nodes, strict=True):
            node.close()
            api.close()
    assert uids[0] != uids[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="a worker without rights runs scripts as itself")
def test_a_user_is_taken_by_one_script_at_a_time() -> None:
    first, second = take_user(), take_user()
    assert first.uid != second.uid
    assert try_to_take(first.uid) is None
    first.release()
    second.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else for a test")
@pytest.mark.parametrize("level", Level, ids=str)
def test_a_worker_without_rights_can_build_it_too(level: Level, tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no Python that another user can start")
    tmp_path.chmod(0o755)
    for above in tmp_path.parents:
        if "pytest-of-root" in above.parts:
            above.chmod(0o755)
    package = tmp_path / "worker" / "scripts"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    for name in ("sandbox.py", "sandbox_init.py", "sandbox_users.py", "gang_network.py"):
        shutil.copyfile(Path(sandbox.__file__).with_name(name), package / name)
    code = f"from worker.scripts.sandbox import *; print(why_not(Level({str(level)!r})))"
    done = subprocess.run(
        [
            *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
            python,
            "-c",
            code,
        ],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    if "not permitted" in done.stdout or "not installed" in done.stdout:
        pytest.skip(f"this machine does not let users: {done.stdout}")
    assert done.stdout == "\n"
