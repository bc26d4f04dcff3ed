"""How busy a rank is, against work whose length is known."""

import time

import torch

from strategies.train.watching import use
from strategies.train.watching.use import EVERY_S, Use


def spun(own: Use, work_s: float) -> dict[str, float]:
    """What is told after one thread has computed for so long."""
    began = time.process_time()
    while time.process_time() - began < work_s:
        pass
    own.looked_at -= EVERY_S  # as if the last look were a second older
    return own.look()


def test_nothing_is_told_twice_in_a_second() -> None:
    own = Use(torch.device("cpu"))
    assert own.look() == {}
    assert set(spun(own, 0.0)) == {"cpu_pct"}
    assert own.look() == {}


def test_without_a_gpu_it_is_the_share_of_all_its_threads() -> None:
    own = Use(torch.device("cpu"))
    told = spun(own, 0.2)["cpu_pct"] * torch.get_num_threads()
    # A second older than it is: 0.2 s of computing in 1.2 s and what the machine takes beside it.
    assert 5 < told < 20


def test_a_cpu_has_no_gpu_to_ask() -> None:
    assert use.find_gpu(torch.device("cpu")) is None
