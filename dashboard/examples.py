"""The job specs of `examples/`, to start a new job from."""

from pathlib import Path

# Beside this package in a checkout, in a wheel and in the image.
EXAMPLES = Path(__file__).parent.parent / "examples"
FIRST = "gpt-ddp"


def read_examples() -> dict[str, str]:
    """Name and YAML text of each; `gpt-ddp`, which runs anywhere, comes first."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(EXAMPLES.glob("*.yaml"))}
    return {FIRST: texts.pop(FIRST), **texts}
