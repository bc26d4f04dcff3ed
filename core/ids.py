"""Identifiers: a prefix that tells what it names, then 26 characters that sort by creation time."""

import os
import time
from enum import StrEnum

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
TIME_BITS, RANDOM_BITS = 48, 80


class Kind(StrEnum):
    """What an id names; the value is its prefix."""

    USER = "user"
    LAB = "lab"
    TOKEN = "token"
    JOB = "job"
    STUDY = "study"
    ATTEMPT = "att"
    LEASE = "lease"
    NODE = "node"
    DATASET = "data"
    MODEL = "model"
    CHECKPOINT = "ckpt"
    FILE = "file"


def new_id(kind: Kind) -> str:
    """A fresh id such as `job_01jd3z...`: 48 bits of milliseconds, 80 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds << RANDOM_BITS) | int.from_bytes(os.urandom(RANDOM_BITS // 8), "big")
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(ALPHABET[digit])
    return f"{kind}_{''.join(reversed(digits))}"
