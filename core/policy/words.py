"""Numbers with their nouns, for messages. Pure."""


def gpus_text(number: int) -> str:
    """Format a number of GPUs, or of CPU slots, which policies count as GPUs."""
    return "1 GPU" if number == 1 else f"{number} GPUs"


def lease_text(num_slots: int | None) -> str:
    """Format a lease by its size: `lease of 2 GPUs`, or `lease` for None, which is a whole node."""
    return "lease" if num_slots is None else f"lease of {gpus_text(num_slots)}"
