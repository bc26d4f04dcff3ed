"""Numbers with their nouns, for messages. Pure."""


def gpus_text(number: int) -> str:
    """Format a number of GPUs, or of CPU slots, which policies count as GPUs."""
    return "1 GPU" if number == 1 else f"{number} GPUs"
