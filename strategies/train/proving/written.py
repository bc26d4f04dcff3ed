"""Result of a measuring program: one JSON file, by rank 0."""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path


def out_path(prog: str) -> Path:
    """Return the path that `--out` names."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    return out


def write(out: Path, found: Mapping[str, object]) -> None:
    """Write the result, on the first rank."""
    if int(os.environ.get("RANK", "0")) == 0:
        out.write_text(json.dumps(found))
