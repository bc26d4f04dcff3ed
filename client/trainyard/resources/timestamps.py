"""Times as the API reads them."""

from datetime import datetime

from trainyard.errors import BadInput


def written(at: datetime) -> str:
    """Return a time in RFC 3339. Raises BadInput for a time without offset."""
    if at.tzinfo is None:
        raise BadInput(
            f"{at.isoformat()} has no offset; use datetime.now().astimezone() and the like"
        )
    return at.isoformat()
