"""Runs of tokens whose logits exist at a time. Torch-free."""

# Of float32 logits. On a GPU a run must be long enough to keep it busy: torchtitan (docs,
# chunked_loss.md) takes 8,192 tokens, and loses 1.2 points of MFU with 1,024. On a CPU it should
# stay near its caches: runs of 128 to 512 tokens of 32,768 words were fastest.
BYTES_AT_ONCE: dict[str, int] = {"cuda": 2**30, "cpu": 2**26}


def tokens_at_once(device: str, *, tokens: int, words: int, parts: int) -> int:
    """Return the length of equal runs, at least `parts`, of a micro-batch's tokens.

    `words` is the vocabulary, or the part of it that a rank has; `device` is cuda or cpu.
    """
    most = max(1, BYTES_AT_ONCE.get(device, BYTES_AT_ONCE["cpu"]) // (4 * words))
    return -(-tokens // max(parts, -(-tokens // most)))
