"""Changes between two texts, as a page shows them."""

from dashboard.text_changes import ChangedLine, LineChange, changed_lines

SAME, ADDED, REMOVED, SKIPPED = LineChange


def test_a_change_has_its_lines_around_it_and_the_rest_is_left_out() -> None:
    before = "\n".join(str(number) for number in range(20))
    found = changed_lines(before, before.replace("\n9\n", "\nnine\nmore\n"))
    assert [(line.change, line.text) for line in found] == [
        (SKIPPED, "…"),
        *((SAME, text) for text in "678"),
        (REMOVED, "9"),
        (ADDED, "nine"),
        (ADDED, "more"),
        *((SAME, text) for text in ("10", "11", "12")),
    ]


def test_equal_texts_have_none_and_an_empty_one_is_all_new() -> None:
    assert changed_lines("a\nb", "a\nb\n") == []
    assert changed_lines("", "a\nb") == [ChangedLine(ADDED, "a"), ChangedLine(ADDED, "b")]
