"""Group commit: who leads, who waits, and what an error meets."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.web.groups import MOST, Groups
from tests.running import wait_for


class Book:
    """A writer that notes its groups, waits while it is held, and refuses what is negative."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()

    def write(self, items: Sequence[int]) -> Sequence[int]:
        self.groups.append(list(items))
        self.free.wait(10)
        if any(item < 0 for item in items):
            raise ValueError(f"{min(items)} is negative")
        return [item * 10 for item in items]


def test_one_that_is_alone_is_a_group_of_one_in_its_own_thread() -> None:
    seen = []

    def write(items: Sequence[str]) -> Sequence[str]:
        seen.append(threading.current_thread())
        return items

    assert Groups[str, str]().write("a", write) == "a"
    assert seen == [threading.current_thread()]


def held(groups: Groups[int, int], book: Book, pool: ThreadPoolExecutor, items: range) -> list:
    """Let all items wait behind a first one, 0, that is being written; return their futures."""
    book.free.clear()
    futures = [pool.submit(groups.write, 0, book.write)]
    wait_for(lambda: book.groups == [[0]], what="the first group")
    for number, item in enumerate(items, start=1):
        futures.append(pool.submit(groups.write, item, book.write))
        wait_for(lambda number=number: len(groups) == number, what="the next in line")
    book.free.set()
    return futures


def test_those_that_come_meanwhile_are_written_together_in_their_order() -> None:
    groups, book = Groups[int, int](), Book()
    with ThreadPoolExecutor(10) as pool:
        futures = held(groups, book, pool, range(1, 9))
        assert [future.result(10) for future in futures] == [10 * n for n in range(9)]
    assert book.groups == [[0], [*range(1, 9)]]
    assert groups.write(9, book.write) == 90


def test_a_group_has_a_largest_size() -> None:
    groups, book = Groups[int, int](), Book()
    with ThreadPoolExecutor(MOST + 8) as pool:
        futures = held(groups, book, pool, range(1, MOST + 6))
        assert [future.result(10) for future in futures] == [10 * n for n in range(MOST + 6)]
    assert [len(group) for group in book.groups] == [1, MOST, 5]


def test_an_error_meets_only_what_causes_it() -> None:
    groups, book = Groups[int, int](), Book()
    with ThreadPoolExecutor(10) as pool:
        futures = held(groups, book, pool, range(-1, 3))
        outcomes = [future.exception(10) or future.result() for future in futures]
    assert [str(outcome) for outcome in outcomes] == ["0", "-1 is negative", "0", "10", "20"]
    assert book.groups == [[0], [-1, 0, 1, 2], [-1], [0], [1], [2]]
    assert groups.write(5, book.write) == 50  # nobody is stuck


@pytest.mark.parametrize("clients", [2, 24])
def test_of_many_at_once_each_gets_its_own_answer(clients: int) -> None:
    groups, written = Groups[int, int](), Counter[int]()

    def write(items: Sequence[int]) -> Sequence[int]:
        written.update(items)
        return [-item for item in items]

    def client(number: int) -> bool:
        mine = range(number * 1000, number * 1000 + 200)
        return all(groups.write(item, write) == -item for item in mine)

    with ThreadPoolExecutor(clients) as pool:
        assert all(pool.map(client, range(1, clients + 1)))
    assert len(written) == clients * 200
    assert set(written.values()) == {1}
