"""The specs that a new job starts from."""

from dashboard.examples import EXAMPLES, FIRST, grouped_examples, read_examples


def test_every_example_is_offered_and_the_first_one_first() -> None:
    names = list(read_examples())
    assert names[0] == FIRST
    assert sorted(names) == sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def test_every_example_is_in_one_group_and_says_what_it_teaches() -> None:
    groups = grouped_examples()
    names = [name for members in groups.values() for name, _ in members]
    assert sorted(names) == sorted(read_examples())
    assert len(groups["Others"]) < 8
    assert [name for members in groups.values() for name, lesson in members if not lesson] == []
