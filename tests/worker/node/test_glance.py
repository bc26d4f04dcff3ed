"""What the agent sees at a glance of attempts at work, and how agent and shim wake each other."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from core.spec.spec import Launcher
from core.states import Outcome
from strategies.plan.durable_files import write_atomically
from worker.node.attempts import Attempt, DeadlinesFile, Key, NodeFolder, ShimState

WAITER = """
import signal
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
print("ready", flush=True)
print(signal.sigtimedwait([signal.SIGCHLD], 60) is not None, flush=True)
"""
SCHEDULE = DeadlinesFile(
    boot_id="boot",
    checkpoint_at=1,
    stop_at=2,
    term_at=3,
    kill_at=4,
    reason=Outcome.CANCELLED,
)


@pytest.fixture
def node(tmp_path: Path) -> NodeFolder:
    folder = NodeFolder(tmp_path)
    folder.create()
    return folder


@pytest.fixture
def attempt(node: NodeFolder) -> Attempt:
    found = node.attempt(Key("job_a", 1))
    found.path.mkdir()
    # Older than any clock tick: whatever is written from here on changes the folder's time.
    os.utime(found.path, (1, 1))
    return found


@pytest.mark.parametrize("name", ["exit.json", "held.json", "ready", "kept.json", "control.json"])
def test_a_file_that_appears_is_seen_at_a_glance(
    node: NodeFolder, attempt: Attempt, name: str
) -> None:
    before = node.glance()
    write_atomically(attempt.path / name, b"{}")
    assert node.glance() != before


def test_lines_and_steps_are_no_news(node: NodeFolder, attempt: Attempt) -> None:
    attempt.metrics.write_text('{"step": 1}\n')
    os.utime(attempt.path, (1, 1))
    before = node.glance()
    with attempt.metrics.open("a") as file:
        file.write('{"step": 2}\n')
    assert node.glance() == before


def test_attempts_that_come_and_go_are_seen_at_a_glance(node: NodeFolder, attempt: Attempt) -> None:
    before = node.glance()
    node.attempt(Key("job_b", 1)).path.mkdir()
    both = node.glance()
    assert [key for key, *_ in both] == [Key("job_a", 1), Key("job_b", 1)]
    node.wipe(attempt)
    assert [key for key, *_ in node.glance()] == [Key("job_b", 1)]
    assert before != both


def test_the_end_of_a_shim_is_seen_at_a_glance_and_wakes_whoever_waits_for_it(
    node: NodeFolder, attempt: Attempt
) -> None:
    lock = attempt.take_lock()
    assert lock is not None
    os.utime(attempt.path, (1, 1))
    before, is_over = node.glance(), threading.Event()

    def wait() -> None:
        attempt.wait_for_shim()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not is_over.wait(0.1)
    assert node.glance() == before, "who waits is not taken for a shim, nor for its end"
    os.close(lock)
    assert is_over.wait(30)
    assert node.glance() != before


def test_who_waits_for_a_shim_that_never_was_is_not_kept_waiting(attempt: Attempt) -> None:
    attempt.wait_for_shim()


def test_a_shim_is_woken_when_the_agent_writes_its_deadlines(attempt: Attempt) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        shim = ShimState(pid=one.pid, boot_id="boot", launcher=Launcher.WARM, began_s=1.0)
        attempt.shim_file.write_text(shim.model_dump_json())
        attempt.write_schedule(SCHEDULE)
        assert one.stdout.readline() == "True\n"
    assert attempt.schedule() == SCHEDULE


def test_a_shim_that_is_gone_does_not_keep_its_deadlines_from_being_written(
    attempt: Attempt,
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    shim = ShimState(pid=gone.pid, boot_id="boot", launcher=Launcher.WARM, began_s=1.0)
    attempt.shim_file.write_text(shim.model_dump_json())
    attempt.write_schedule(SCHEDULE)
    assert attempt.schedule() == SCHEDULE
