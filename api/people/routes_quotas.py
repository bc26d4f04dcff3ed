"""/v1/me/quotas: the present rest of your quotas under every policy."""

from fastapi import APIRouter

from api.people.quota_rest import quotas_of
from api.people.schemas_usage import QuotasView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/me", tags=["usage"])


@router.get("/quotas", summary="Get my remaining quotas")
def get_quotas(person: SignedIn, process: ProcessDep) -> QuotasView:
    """Return what you may still book, for each policy and each window that is not over."""
    now = utc_now()
    with process.read() as session:
        found = quotas_of(session, person.id, now)
    return QuotasView(user=person.name, quotas=found)
