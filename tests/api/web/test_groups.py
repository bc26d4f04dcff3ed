"""Group commit: who is written together, and what an error meets."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Sequence

import pytest

from api.web.groups import COMPANY, MOST, Groups


class Book:
    """A writer that notes its groups, waits while it is held, and refuses what is negative."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()

    def write(self, items: Sequence[int]) -> Sequence[int]:
        self.groups.append(list(items))
        assert self.free.wait(10)
        if any(item < 0 for item in items):
            raise ValueError(f"{min(items)} is negative")
        return [item * 10 for item in items]


async def held(groups: Groups[int, int], book: Book, items: range) -> list[Awaitable[int]]:
    """Let all items wait behind a first one, 0, that is being written; return their answers."""
    book.free.clear()
    answers = [asyncio.create_task(groups.write(0, book.write))]
    while book.groups != [[0]]:
        await asyncio.sleep(0.001)
    answers += [asyncio.create_task(groups.write(item, book.write)) for item in items]
    while len(groups) < len(items):
        await asyncio.sleep(0.001)
    book.free.set()
    return list(answers)


def test_those_that_come_meanwhile_are_written_together_in_their_order() -> None:
    groups, book = Groups[int, int](), Book()

    async def story() -> None:
        answers = await held(groups, book, range(1, 9))
        assert await asyncio.gather(*answers) == [10 * n for n in range(9)]
        assert book.groups == [[0], [*range(1, 9)]]
        assert await groups.write(9, book.write) == 90

    asyncio.run(story())


def test_a_group_has_a_largest_size() -> None:
    groups, book = Groups[int, int](), Book()

    async def story() -> None:
        answers = await held(groups, book, range(1, MOST + 6))
        assert await asyncio.gather(*answers) == [10 * n for n in range(MOST + 6)]

    asyncio.run(story())
    assert [len(group) for group in book.groups] == [1, MOST, 5]


def test_an_error_meets_only_what_causes_it() -> None:
    groups, book = Groups[int, int](), Book()

    async def story() -> None:
        answers = await held(groups, book, range(-1, 3))
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["0", "-1 is negative", "0", "10", "20"]
        assert await groups.write(5, book.write) == 50  # nobody is stuck

    asyncio.run(story())
    assert book.groups == [[0], [-1, 0, 1, 2], [-1], [0], [1], [2], [5]]


def test_one_whose_request_is_gone_holds_up_nobody() -> None:
    groups, book = Groups[int, int](), Book()

    async def story() -> None:
        answers = await held(groups, book, range(1, 3))
        gone = answers[1]
        assert isinstance(gone, asyncio.Task)
        gone.cancel()
        assert await answers[2] == 20
        assert gone.cancelled()

    asyncio.run(story())
    assert book.groups == [[0], [1, 2]]


@pytest.mark.parametrize("clients", [1, 2, 24])
def test_of_many_at_once_each_gets_its_own_answer(clients: int) -> None:
    groups, written = Groups[int, int](), Counter[int]()

    def write(items: Sequence[int]) -> Sequence[int]:
        written.update(items)
        return [-item for item in items]

    async def client(number: int) -> None:
        for item in range(number * 1000, number * 1000 + 200):
            assert await groups.write(item, write) == -item

    async def story() -> None:
        await asyncio.gather(*map(client, range(clients)))

    asyncio.run(story())
    assert len(written) == clients * 200
    assert set(written.values()) == {1}


def test_a_group_waits_for_those_that_its_feeder_is_at_work_on() -> None:
    plans, book = Groups[int, int](), Book()
    line, written = Groups[int, int](feeder=plans), Book()

    async def client(item: int) -> int:
        return await line.write(await plans.write(item, book.write), written.write)

    async def story() -> None:
        book.free.clear()
        first = asyncio.create_task(client(1))
        while not book.groups:
            await asyncio.sleep(0.001)
        alone = asyncio.create_task(line.write(7, written.write))
        others = [asyncio.create_task(client(item)) for item in (2, 3)]
        while len(plans) < 2:
            await asyncio.sleep(0.001)
        assert written.groups == []
        book.free.set()
        assert await asyncio.gather(first, alone, *others) == [100, 70, 200, 300]

    asyncio.run(story())
    assert book.groups == [[1], [2, 3]]
    assert written.groups == [[7, 10], [20, 30]]


class Patient(Groups[int, int]):
    RESTS = 4.0


def test_a_writer_that_rests_writes_what_comes_meanwhile_together() -> None:
    groups, sizes = Patient(), list[int]()
    work_s = 0.02

    def write(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        time.sleep(work_s)
        return items

    async def story() -> None:
        answers = []
        for item in range(40):  # one by one, each while nothing is written
            answers.append(asyncio.create_task(groups.write(item, write)))
            await asyncio.sleep(1.5 * work_s)
        assert await asyncio.gather(*answers) == [*range(40)]

    asyncio.run(story())
    assert sizes[0] == 1  # nobody is kept waiting who is alone
    assert sum(sizes) == 40
    assert len(sizes) <= 20


def test_a_rest_ends_when_there_is_company() -> None:
    groups, book = Patient(), Book()

    def slow(items: Sequence[int]) -> Sequence[int]:
        if items == [0]:
            time.sleep(2.0)  # so the rest would be eight seconds
        return book.write(items)

    async def story() -> None:
        first = asyncio.create_task(groups.write(0, slow))
        await first
        others = [asyncio.create_task(groups.write(n, slow)) for n in range(1, COMPANY)]
        await asyncio.sleep(0.1)
        assert book.groups == [[0]]
        async with asyncio.timeout(4):
            assert await groups.write(COMPANY, slow) == 10 * COMPANY
            await asyncio.gather(*others)

    asyncio.run(story())
    assert book.groups[:2] == [[0], [*range(1, COMPANY + 1)]]
