"""Policy documents as people send them."""

from api.web.errors import InvalidRequest
from api.web.schemas import ProblemItem
from core.policy.document import BadPolicy, Policy, load


def read_document(text: str) -> Policy:
    """Return the policy of a text. Raises InvalidRequest with every flaw of it."""
    try:
        return load(text)
    except BadPolicy as error:
        items = [
            ProblemItem(param=flaw.param, code=flaw.code, message=flaw.message)
            for flaw in error.flaws
        ]
        raise InvalidRequest(items, code=error.code) from error
