"""Fixtures of the training tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.strategies.support.law import Bench
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import WarmRanks, ragged_documents

Options = dict[str, Any]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As in a rank: on small tensors a second thread mostly waits, and takes a core to do so."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def warm_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    warm = WarmRanks(tmp_path_factory.mktemp("ranks"))
    yield warm
    warm.close()


@pytest.fixture
def warm(warm_process: WarmRanks, tmp_path: Path) -> WarmRanks:
    """Warm ranks whose logs belong to this test."""
    warm_process.logs = tmp_path / "rank-logs"
    return warm_process


@pytest.fixture(scope="session")
def pool(warm_process: WarmRanks) -> Iterator[Pool]:
    """Ranks that train one run after another."""
    pool = Pool(warm_process)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """RunPlan fields that name a dataset of documents of many lengths."""
    path = tmp_path_factory.mktemp("data") / "ragged.jsonl"
    path.write_text(ragged_documents())
    return {"dataset_path": str(path), "dataset_format": "jsonl"}


@pytest.fixture(scope="session")
def bench(pool: Pool, ragged: Options, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Trains a split and its one-rank twin."""
    return Bench(pool, ragged, tmp_path_factory.mktemp("bench"))
