"""Numbers in a sentence."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 rank`, `2,048 ranks`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
