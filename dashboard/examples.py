"""The job specs of `examples/`, to start a new job from."""

from pathlib import Path

PACKAGED = Path(__file__).parent / "examples"
IN_CHECKOUT = Path(__file__).parent.parent / "examples"
FIRST = "gpt-ddp"


def read_examples() -> dict[str, str]:
    """Name and YAML text of each; `gpt-ddp`, which runs anywhere, comes first."""
    folder = PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    return {FIRST: texts.pop(FIRST), **texts}
