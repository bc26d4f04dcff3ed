"""The specs that a new job starts from."""

from dashboard.examples import EXAMPLES, FIRST, read_examples


def test_every_example_is_offered_and_the_first_one_first() -> None:
    names = list(read_examples())
    assert names[0] == FIRST
    assert sorted(names) == sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
