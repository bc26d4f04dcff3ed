"""Built-in images: 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships.

They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak,
UCI Machine Learning Repository, 1998). Torch-free and numpy-free.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES, SHAPE, CLASSES = 1797, (8, 8, 1), 10
NUM_BYTES = IMAGES * (8 * 8 * 4 + 1)  # as float32 pixels, and a byte for each label

# Pixels of this dataset count ink, from 0 to 16.
WRITE = """
import sys
import numpy as np
from sklearn.datasets import load_digits
digits = load_digits()
pixels, labels = digits.images / 16, digits.target
np.savez(sys.argv[1], images=pixels.astype(np.float32), labels=labels.astype(np.uint8))
"""


def prepare(cache_dir: Path) -> Path:
    """Return the .npz file, written atomically on first use. Raises ValueError without
    scikit-learn.

    A process of its own writes it: importing scikit-learn takes 100 MB, which a node's worker would
    keep for as long as it lives.
    """
    target = cache_dir / "digits.npz"
    if target.exists():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=cache_dir, prefix="digits.", suffix=".npz")
    os.close(descriptor)
    written = subprocess.run(
        [sys.executable, "-c", WRITE, aside], capture_output=True, text=True, check=False
    )
    if written.returncode:
        os.unlink(aside)
        why = written.stderr.strip().rpartition("\n")[2]
        raise ValueError(
            f"digits come with scikit-learn, which cannot be used on this node ({why}); install "
            "the platform with its extra `train` on this node"
        )
    os.chmod(aside, 0o644)
    os.replace(aside, target)
    return target
