"""What all open calendars ask for is worked out once, not once for each of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

from api.leases.answer_cache import AnswerCache

MANY = 16


def test_many_who_ask_at_once_are_given_one_answer_and_another_word_another() -> None:
    kept: AnswerCache[int] = AnswerCache()
    gate = threading.Barrier(MANY)
    worked: list[str] = []

    def ask(word: str) -> int:
        def work() -> int:
            worked.append(word)
            return len(worked)

        gate.wait(30)
        return kept.read(word, work)

    with ThreadPoolExecutor(MANY) as pool:
        assert set(pool.map(ask, ["before"] * MANY)) == {1}
        assert set(pool.map(ask, ["after"] * MANY)) == {2}
    assert worked == ["before", "after"]
