"""What the API says of what is in the way of taking a node out."""

from dataclasses import dataclass

from trainyard.decoding import View
from trainyard.lease_views import Lease


@dataclass(frozen=True, kw_only=True)
class InTheWay(View):
    """What runs on a node and what is booked on it. `jobs` are ids."""

    node: str
    state: str
    jobs: tuple[str, ...]
    leases: tuple[Lease, ...]
