"""How often a person may submit and try to sign in, counted in this process.

No Redis here: with it away a limit must neither open nor close everything. N API processes allow N
times as much. A limiter that fails raises, so a sign-in it could not count is refused.
"""

import threading
import time
from collections import deque

from core.errors import TooMany
from core.settings import ApiSettings

WINDOW_S = 60.0
MAX_KEYS = 10_000  # then keys that have been quiet for a window are forgotten
PER_ADDRESS = 10  # sign-ins of different people from one address, as a multiple of one person's


class RateLimited(TooMany):
    """Too often; `retry_after_s` becomes the Retry-After header."""

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(f"{message} Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class RateLimits:
    """The counters of one process."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._times: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def count_submission(self, user_id: str) -> None:
        """Raises RateLimited over the person's submissions a minute."""
        self._count(user_id, self._settings.submissions_per_minute, "submissions")

    def count_login(self, name: str, address: str) -> None:
        """Raises RateLimited over the sign-ins a minute, of one name or from one address."""
        most = self._settings.logins_per_minute
        self._count(f"address {address}", most * PER_ADDRESS, "sign-ins from your address")
        self._count(f"name {name.lower()[:32]}", most, "sign-ins for this name")

    def _count(self, key: str, most: int, what: str) -> None:
        """Count one more within the last minute; what is refused is not counted."""
        now = time.monotonic()
        with self._lock:
            if len(self._times) > MAX_KEYS:
                self._forget(now)
            times = self._times.setdefault(key, deque())
            while times and times[0] <= now - WINDOW_S:
                times.popleft()
            if len(times) < most:
                times.append(now)
                return
            wait_s = times[0] + WINDOW_S - now if times else WINDOW_S
        raise RateLimited(f"At most {most} {what} a minute.", retry_after_s=max(1, round(wait_s)))

    def _forget(self, now: float) -> None:
        for key in [key for key, times in self._times.items() if times[-1] <= now - WINDOW_S]:
            del self._times[key]
