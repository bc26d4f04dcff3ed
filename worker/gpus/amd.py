"""GPUs of AMD, which Trainyard does not use: they are named, so that nobody wonders."""

from pathlib import Path

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
NOT_USED = "Trainyard does not use GPUs of AMD; the node offers CPU slots"


def count_amd_gpus(topology: Path = TOPOLOGY) -> int:
    """Return the number of AMD's GPUs that the kernel's compute driver lists.

    The topology has a node for each CPU socket too, without SIMD units.
    """
    count = 0
    for properties in topology.glob("*/properties"):
        words = dict(line.split(maxsplit=1) for line in properties.read_text().splitlines())
        count += int(words.get("simd_count", "0")) > 0
    return count
