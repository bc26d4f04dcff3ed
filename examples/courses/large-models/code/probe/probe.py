"""Bytes that one step of training a transformer needs, by term; no package is needed."""

import json
import os
import sys
from pathlib import Path

WEIGHT, GRADIENT, ADAM = 4, 4, 8  # bytes per parameter in float32


def parameters(layers: int, width: int, vocabulary: int = 256) -> int:
    """Numbers in a GPT: attention and feed-forward matrices of each layer, and the embedding."""
    return layers * 12 * width * width + vocabulary * width


def main() -> None:
    """Print the terms, and keep them as a file of the job."""
    layers, width = (int(argument) for argument in sys.argv[1:3])
    count = parameters(layers, width)
    terms = {
        "weights": WEIGHT * count,
        "gradients": GRADIENT * count,
        "optimizer": ADAM * count,
    }
    for name, size in terms.items():
        print(f"{name:10} {size:12,} bytes")
    out = Path(os.environ.get("TRAINYARD_OUTPUT", "."))
    (out / "terms.json").write_text(json.dumps({"parameters": count, **terms}))


if __name__ == "__main__":
    main()
