"""What a rank tells of its memory, with the counts of a GPU's allocator scripted."""

from collections.abc import Callable

import pytest
import torch

from strategies.plan.estimates.memory import GIB
from strategies.train.watching.allocator import Allocator

Counts = Callable[[int], None]


@pytest.fixture
def retried(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Sets the allocator's retries so far; it holds 20.5 GiB, 18 of them in tensors."""
    told: dict[str, int] = {}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: told)

    def count(retries: int) -> None:
        told["allocated_bytes.all.peak"] = 18 * GIB
        told["reserved_bytes.all.peak"] = 41 * GIB // 2
        told["num_alloc_retries"] = retries

    return count


def test_a_gpu_tells_what_is_reserved_and_a_full_one_its_retries(
    retried: Counts, capsys: pytest.CaptureFixture[str]
) -> None:
    allocator = Allocator(torch.device("cuda", 0), rank=3)
    retried(0)
    assert allocator.look(1) == {"max_active_gib": 18.0, "max_reserved_gib": 20.5}
    assert capsys.readouterr().out == ""
    retried(1)
    assert allocator.look(2)["num_alloc_retries"] == 1
    said = capsys.readouterr().out
    assert said.startswith("rank 3: the memory of its GPU is full: up to step 2 ")
    for words in ("asked again 1 time,", "20.5 GiB reserved", "training.micro_batch_size"):
        assert words in said


def test_each_doubling_of_the_retries_is_said_and_nothing_between(
    retried: Counts, capsys: pytest.CaptureFixture[str]
) -> None:
    allocator = Allocator(torch.device("cuda", 0), rank=0)
    said = []
    for retries in (0, 1, 1, 2, 3, 4, 4, 5, 9, 100):
        retried(retries)
        allocator.look(7)
        said.append(capsys.readouterr().out.count("\n"))
    assert said == [0, 1, 0, 1, 0, 1, 0, 0, 1, 1]


def test_before_its_first_tensor_a_gpu_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})
    told = Allocator(torch.device("cuda", 0), rank=0).look(0)
    assert told == {"max_active_gib": 0.0, "max_reserved_gib": 0.0}


def test_a_cpu_tells_the_memory_of_its_process() -> None:
    assert set(Allocator(torch.device("cpu"), rank=0).look(1)) == {"max_active_gib"}
