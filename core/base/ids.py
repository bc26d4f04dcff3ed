"""Identifiers: a prefix for the kind of thing, then 26 characters that sort by creation time."""

import os
from enum import StrEnum

from core.base.clock import utc_now

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
TIME_BITS, RANDOM_BITS = 48, 80


class IdKind(StrEnum):
    """Kind of thing that an id names; the value is its prefix."""

    USER = "user"
    LAB = "lab"
    INVITE = "invite"
    GRANT = "grant"
    CLEANUP = "clean"
    TOKEN = "token"
    JOB = "job"
    STUDY = "study"
    AGENDA = "agenda"
    ATTEMPT = "att"
    LEASE = "lease"
    WAIT = "wait"
    OFFER = "offer"
    MAINTENANCE = "maint"
    FEED = "feed"
    WINDOW = "window"
    NODE = "node"
    DATASET = "data"
    MODEL = "model"
    CHECKPOINT = "ckpt"
    FILE = "file"
    UPLOAD = "up"
    SNAPSHOT = "snap"
    TOKENIZER = "tok"
    SHARE = "share"
    TEMPLATE = "tmpl"
    COURSE = "course"
    EXERCISE = "exer"


def new_id(kind: IdKind) -> str:
    """Return a fresh id such as `job_01jd3z...`: 48 bits of milliseconds, 80 random bits."""
    milliseconds = int(utc_now().timestamp() * 1000)
    number = (milliseconds << RANDOM_BITS) | int.from_bytes(os.urandom(RANDOM_BITS // 8), "big")
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(ALPHABET[digit])
    return f"{kind}_{''.join(reversed(digits))}"
