"""The lock of an attempt: held by its shim, looked at by the worker, by both at the same moment."""

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.node.attempts import Attempt


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


@contextmanager
def locked(attempt: Attempt, how: int) -> Iterator[None]:
    """As by another process."""
    descriptor = os.open(attempt.lock_file, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, how)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_shim_starts_although_the_worker_looks_at_that_moment(attempt: Attempt) -> None:
    """Otherwise it would take itself for a duplicate, and the job would wait for the next one."""
    with ThreadPoolExecutor() as pool:
        with locked(attempt, fcntl.LOCK_SH):
            asked = pool.submit(attempt.take_lock)
            with pytest.raises(TimeoutError):
                asked.result(0.1)
        lock = asked.result(30)
    assert lock is not None
    assert attempt.shim_lives()
    os.close(lock)
    assert not attempt.shim_lives()


def test_several_may_look_at_once(attempt: Attempt) -> None:
    assert not attempt.shim_lives(), "no shim was ever here"
    with locked(attempt, fcntl.LOCK_SH):
        assert not attempt.shim_lives()


def test_of_two_shims_one_runs(attempt: Attempt) -> None:
    lock = attempt.take_lock()
    assert lock is not None
    with ThreadPoolExecutor() as pool:
        other = pool.submit(attempt.take_lock)
        with pytest.raises(TimeoutError):
            other.result(0.1)
        attempt.shim_file.write_text("{}")
        assert other.result(30) is None
    os.close(lock)
    assert attempt.take_lock() is None, "it ran before and was lost"
