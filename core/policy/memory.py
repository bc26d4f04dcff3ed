"""Cache of results worked out from a collection of facts, while the same collection is used."""

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

Known = TypeVar("Known")
LIMIT = 512


class Memory:
    """Cache keyed by identity, not value: comparing five hundred leases costs what it saves."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, int], tuple[object, object]] = {}

    def recall(self, key: Hashable, facts: tuple[object, ...], work: Callable[[], Known]) -> Known:
        """Return `work()`, done once for this key and these facts."""
        at = (key, id(facts))
        known = self._known.get(at)
        # `facts` is held here, so that no other tuple can get its id.
        if known is not None and known[0] is facts:
            return cast(Known, known[1])
        found = work()
        if len(self._known) >= LIMIT:
            self._known.clear()
        self._known[at] = (facts, found)
        return found
