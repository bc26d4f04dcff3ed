"""The proxy with names and waits of a test: in its environment NAMES is the JSON of addresses by
name, PATIENCE the seconds that it waits for a request."""

import json
import os
import sys
from collections.abc import Sequence

from worker.egress import proxy

NAMES: dict[str, list[str]] = json.loads(os.environ.pop("NAMES"))


async def resolve(name: str, port: int) -> Sequence[str]:
    try:
        return NAMES[name]
    except KeyError:
        raise OSError("no such name") from None


if __name__ == "__main__":
    proxy.HEAD_WITHIN_S = float(os.environ.pop("PATIENCE"))
    uid = int(sys.argv[3]) if sys.argv[3:] else None
    proxy.main(int(sys.argv[1]), int(sys.argv[2]), uid, resolve=resolve)
