"""The job specs of `examples/`, to start a new job from."""

from pathlib import Path

IN_CHECKOUT = Path(__file__).parent.parent / "examples"
FIRST_JOB = Path(__file__).parent / "first_job.yaml"  # `gpt-ddp`; an installed copy has only this
FIRST = "gpt-ddp"


def read_examples(folder: Path = IN_CHECKOUT) -> dict[str, str]:
    """Name and YAML text of each; `gpt-ddp`, which runs anywhere, comes first."""
    others = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    return {FIRST: FIRST_JOB.read_text(encoding="utf-8"), **others}
