"""The specs that a new job starts from."""

from pathlib import Path

from dashboard.examples import FIRST, FIRST_JOB, IN_CHECKOUT, read_examples


def test_the_packaged_spec_is_the_example() -> None:
    assert FIRST_JOB.read_text() == (IN_CHECKOUT / f"{FIRST}.yaml").read_text()


def test_every_example_is_offered_and_the_first_one_first() -> None:
    names = list(read_examples())
    assert names[0] == FIRST
    assert sorted(names) == sorted(path.stem for path in IN_CHECKOUT.glob("*.yaml"))


def test_an_installed_copy_still_has_one(tmp_path: Path) -> None:
    assert list(read_examples(tmp_path)) == [FIRST]
