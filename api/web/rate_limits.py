"""Rate limits of submissions, sign-ins and other requests, counted by all API processes together.

The counts are in Redis. While it is away every process counts by itself: N processes then allow up
to N times as much, and nobody is locked out.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from typing import TypeVar

import redis
import structlog

from core.base.errors import TooMany
from core.process.settings import ApiSettings

WINDOW_S = 60.0
MAX_KEYS = 10_000  # then keys that have been quiet for a window are forgotten
PLANS_A_MINUTE = 300  # a hand that types makes some 100; a plan costs up to 30 ms
AT_LARGE = 10  # failures of a name from all addresses: so many times those from one
STARTS = 10  # trips to a provider, each a row: so many times the failures of an address
SPREAD_S = 5  # whoever is told the same second would come in the same second
ANSWERS_WITHIN_S = 0.25
AWAY_S = 5.0  # how long a Redis that did not answer is not asked again

# Moments of what was counted, in microseconds of Redis's own clock, the oldest first. Returns for
# each key 1 if `cost` more were allowed, and counted; the count; and the time until the oldest is
# forgotten. A key that is named twice is counted twice.
COUNT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local most, cost, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local states = {}
for number, key in ipairs(KEYS) do
    local oldest = redis.call('LINDEX', key, 0)
    while oldest and tonumber(oldest) <= now - window do
        redis.call('LPOP', key)
        oldest = redis.call('LINDEX', key, 0)
    end
    local counted = redis.call('LLEN', key)
    local allowed = counted + cost <= most and 1 or 0
    if allowed == 1 and cost > 0 then
        local moment = string.format('%.0f', now)
        for _ = 1, cost do redis.call('RPUSH', key, moment) end
        redis.call('PEXPIRE', key, math.ceil(window / 1000))
        counted = counted + cost
        oldest = oldest or moment
    end
    states[number] = {allowed, counted, oldest and tonumber(oldest) + window - now or window}
end
return states
"""

log = structlog.get_logger()

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class LimitState:
    """State of a count against its limit."""

    allowed: bool
    limit: int
    remaining: int
    reset_s: int
    """Seconds until the oldest of the counted events is forgotten."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the names of draft-ietf-httpapi-ratelimit-headers-07."""
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_s),
        }


class RateLimited(TooMany):
    """Refusal of a request over its limit; the standing becomes the Retry-After header and its
    kin."""

    code = "rate_limited"

    def __init__(self, what: str, standing: LimitState) -> None:
        super().__init__(
            f"At most {standing.limit} {what} a minute. Try again in {standing.reset_s} s."
        )
        self.retry_after_s = standing.reset_s
        self.headers = standing.headers


class RateLimits:
    """Limits of an API process, counted in Redis, or in the process while Redis is away."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._shared = SharedCounts(settings.redis_url)
        self._own = OwnCounts()
        self._away_until = 0.0  # of time.monotonic()

    def count_submission(self, user_id: str, *, jobs: int = 1) -> LimitState:
        """Count a person's submissions of the last minute. Raises RateLimited over the limit; then
        none is counted."""
        most = self._settings.submissions_per_minute
        return self._count(f"submit {user_id}", most, "submissions", cost=jobs)

    def count_submissions(self, user_ids: Sequence[str]) -> Sequence[LimitState | RateLimited]:
        """Count a submission of each of these people, in one trip; return the refusal of each that
        is over its limit."""
        most = self._settings.submissions_per_minute
        keys = [f"submit {user_id}" for user_id in user_ids]
        states = self._asked(lambda counts: counts.count_each(keys, most))
        return [state if state.allowed else RateLimited("submissions", state) for state in states]

    def count_plan(self, user_id: str) -> None:
        """Count a plan; a page asks for one at each change of its text. Raises RateLimited over the
        limit."""
        self._count(f"plan {user_id}", PLANS_A_MINUTE, "plans")

    def check_sign_in(self, address: str, name: str | None = None) -> None:
        """Raise RateLimited if too many sign-ins have failed within the last minute.

        Only failures count: a lecture hall behind one address gets in, a guesser does not. One
        address can use up its own tries of a name, but not those of other addresses.
        """
        for key, most, what in self._sign_in_limits(address, name):
            standing = self._look(key, most)
            if not standing.allowed:
                wait_s = standing.reset_s + random.randint(0, SPREAD_S)
                raise RateLimited(what, replace(standing, reset_s=wait_s))
        if name is not None:  # who knows the password makes us hash as well
            most = self._settings.logins_per_minute * AT_LARGE
            self._count(f"{name.lower()[:32]} at {address}", most, "sign-ins for this name")

    def count_failed_sign_in(self, address: str, name: str | None = None) -> None:
        """Count a failed sign-in from this address for this name."""
        for key, most, _ in self._sign_in_limits(address, name):
            self._hit(key, most)

    def count_trip(self, address: str) -> None:
        """Count a trip to a provider that begins at an address. Raises RateLimited over the
        limit."""
        most = STARTS * self._settings.most_address_logins
        self._count(f"trip {address}", most, "sign-ins from your address")

    def count_letter(self, address: str) -> None:
        """Count a request from an address for a letter to set a password. Raises RateLimited over
        the limit."""
        self._count(f"letter {address}", self._settings.logins_per_minute, "letters")

    def count_password_change(self, user_id: str) -> None:
        """Count a person's guess at their present password. Raises RateLimited over the limit."""
        self._count(f"password {user_id}", self._settings.logins_per_minute, "changes of password")

    def count_test_notice(self, user_id: str) -> None:
        """Count a person's test of their notifications. Raises RateLimited over the limit."""
        self._count(f"test {user_id}", self._settings.logins_per_minute, "tests")

    def are_many_failures(self, subject: str, many: int, *, within: timedelta) -> bool:
        """Count a failed sign-in. Returns True if there are now `many` within that time."""
        minutes = round(within.total_seconds() / WINDOW_S)
        return self._hit(f"failed {subject}", many, minutes=minutes).remaining == 0

    def close(self) -> None:
        """Close the connections to Redis."""
        self._shared.close()

    def _count(self, key: str, most: int, what: str, *, cost: int = 1) -> LimitState:
        standing = self._hit(key, most, cost)
        if not standing.allowed:
            raise RateLimited(what, standing)
        return standing

    def _sign_in_limits(self, address: str, name: str | None) -> Iterator[tuple[str, int, str]]:
        """Yield key, limit, and the name of what is counted."""
        at_address = self._settings.most_address_logins
        yield f"sign-in at {address}", at_address, "failed sign-ins from your address"
        if name is not None:
            most, person = self._settings.logins_per_minute, name.lower()[:32]
            yield f"sign-in of {person} at {address}", most, "failed sign-ins for this name"
            yield f"sign-in of {person}", most * AT_LARGE, "failed sign-ins for this name"

    def _hit(self, key: str, most: int, cost: int = 1, *, minutes: int = 1) -> LimitState:
        return self._asked(lambda counts: counts.count(key, most, cost, minutes=minutes))

    def _look(self, key: str, most: int) -> LimitState:
        return self._asked(lambda counts: counts.look(key, most))

    def _asked(self, ask: "Callable[[SharedCounts | OwnCounts], Answer]") -> Answer:
        if time.monotonic() >= self._away_until:
            try:
                return ask(self._shared)
            except (redis.RedisError, OSError) as error:
                self._away_until = time.monotonic() + AWAY_S
                log.warning("limits_counted_apart", error=str(error))
        return ask(self._own)


class SharedCounts:
    """Counts of all processes, in Redis; a refused request is not counted. One trip for each."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.Redis.from_url(
            redis_url, socket_connect_timeout=ANSWERS_WITHIN_S, socket_timeout=ANSWERS_WITHIN_S
        )
        self._script = self._redis.register_script(COUNT)

    def count(self, key: str, most: int, cost: int, *, minutes: int = 1) -> LimitState:
        """Count `cost` more within the last minutes. Raises RedisError when it does not answer."""
        return self._ask([key], most, cost, WINDOW_S * minutes)[0]

    def count_each(self, keys: Sequence[str], most: int) -> Sequence[LimitState]:
        """Count one more for each key within the last minute, in one trip."""
        return self._ask(keys, most, 1, WINDOW_S) if keys else []

    def look(self, key: str, most: int) -> LimitState:
        """Say whether one more could be counted. Raises RedisError if Redis does not answer."""
        [state] = self._ask([key], most, 0, WINDOW_S)
        return replace(state, allowed=state.remaining > 0)

    def _ask(
        self, keys: Sequence[str], most: int, cost: int, window_s: float
    ) -> Sequence[LimitState]:
        states = self._script(
            keys=[f"trainyard.limits/{key}" for key in keys],
            args=[most, cost, round(window_s * 1e6)],
        )
        return [
            LimitState(
                allowed=bool(allowed),
                limit=most,
                remaining=max(0, most - counted),
                reset_s=max(1, ceil(reset_us / 1e6)),
            )
            for allowed, counted, reset_us in states
        ]

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()


class OwnCounts:
    """Counts of this process; a refused request is not counted."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def count(self, key: str, most: int, cost: int, *, minutes: int = 1) -> LimitState:
        """Count `cost` more within the last minutes."""
        now, window_s = time.monotonic(), WINDOW_S * minutes
        with self._lock:
            if len(self._times) > MAX_KEYS:
                self._forget(now)
            times = self._times.setdefault(key, deque())
            while times and times[0] <= now - window_s:
                times.popleft()
            allowed = len(times) + cost <= most
            if allowed:
                times.extend([now] * cost)
            reset_s = times[0] + window_s - now if times else window_s
            return LimitState(
                allowed=allowed,
                limit=most,
                remaining=max(0, most - len(times)),
                reset_s=max(1, ceil(reset_s)),
            )

    def count_each(self, keys: Sequence[str], most: int) -> Sequence[LimitState]:
        """Count one more for each key within the last minute."""
        return [self.count(key, most, 1) for key in keys]

    def look(self, key: str, most: int) -> LimitState:
        """Say whether one more could be counted within the last minute."""
        with self._lock:
            times, now = self._times.get(key, deque()), time.monotonic()
            live = [moment for moment in times if moment > now - WINDOW_S]
        return LimitState(
            allowed=len(live) < most,
            limit=most,
            remaining=max(0, most - len(live)),
            reset_s=max(1, ceil(live[0] + WINDOW_S - now)) if live else ceil(WINDOW_S),
        )

    def _forget(self, now: float) -> None:
        for key, times in list(self._times.items()):
            if not times or times[-1] <= now - WINDOW_S:
                del self._times[key]
