"""Hubs of other API processes."""

from api.nodes.watched import Watched
from api.watching.hub import Hub
from tests.api.conftest import World


def hub_of(world: World) -> Hub:
    """Return a hub on the database and the Redis of `world`, as another API process would have."""
    process = world.process
    redis_url = process.settings.redis_url
    return Hub(process.database, redis_url, Watched(process.database, redis_url, process.ringer))
