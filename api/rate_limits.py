"""How often a person may submit and try to sign in, counted in this process.

No Redis here: with it away a limit must neither open nor close everything. N API processes allow N
times as much. A limiter that fails raises, so a sign-in it could not count is refused.
"""

import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from core.errors import TooMany
from core.settings import ApiSettings

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
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._submissions = RateLimitItemPerMinute(settings.submissions_per_minute)
        self._logins = RateLimitItemPerMinute(settings.logins_per_minute)
        self._addresses = RateLimitItemPerMinute(settings.logins_per_minute * PER_ADDRESS)

    def count_submission(self, user_id: str) -> None:
        """Raises RateLimited over the person's submissions a minute."""
        self._count(self._submissions, "submissions", user_id)

    def count_login(self, name: str, address: str) -> None:
        """Raises RateLimited over the sign-ins a minute, of one name or from one address."""
        self._count(self._addresses, "sign-ins from your address", f"address {address}")
        self._count(self._logins, "sign-ins for this name", f"name {name.lower()[:32]}")

    def _count(self, item: RateLimitItemPerMinute, what: str, key: str) -> None:
        if self._limiter.hit(item, what, key):
            return
        reset_at, _ = self._limiter.get_window_stats(item, what, key)
        raise RateLimited(
            f"At most {item.amount} {what} a minute.",
            retry_after_s=max(1, round(reset_at - time.time())),
        )
