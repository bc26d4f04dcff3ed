"""Letters with a link that works once: to set a password, or to accept an invitation."""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from api.people import letters
from api.people.schemas import EMAIL
from api.web.auth import AdminOnly, Public, SignedIn, refuse_cross_site
from api.web.process import ProcessDep
from api.web.schemas import Body, View
from api.web.text_types import PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1", tags=["people"])

TOLD = "If somebody here has this address, a link to set a password is on its way to it."


class NewPasswordLetter(Body):
    """Address of somebody who has no password, or has forgotten it."""

    email: Annotated[str, Field(pattern=EMAIL, max_length=200)]


class LetterView(View):
    """A letter that is on its way."""

    message: str


@router.post(
    "/password-letters",
    status_code=202,
    dependencies=[Public],
    summary="Ask for a letter to set a password",
)
def ask_for_password(
    wanted: NewPasswordLetter, request: Request, process: ProcessDep
) -> LetterView:
    """Mail a link to set a password to the person with this address. The answer is the same whether
    or not there is one; the link works once, for an hour. An address gets one letter in ten
    minutes, and one place may ask as often as sign-ins for a name may fail."""
    refuse_cross_site(request, process)
    letters.require_mail(process)
    process.limits.count_letter(request.client.host if request.client else "unknown")
    process.transact(letters.ask_for_password, wanted.email, process, now=utc_now())
    return LetterView(message=TOLD)


@router.post(
    "/users/{user_id}/password-letter", status_code=202, summary="Mail a person a password link"
)
def mail_password(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> LetterView:
    """Mail a person a link to set a password. It works once, for a day."""
    letters.require_mail(process)
    process.transact(letters.mail_password, user_id, person, process, now=utc_now())
    return LetterView(message="A link to set a password is on its way.")


@router.post("/invites/{invite_id}/letter", status_code=202, summary="Mail an invitation")
def mail_invite(invite_id: PlainText, person: SignedIn, process: ProcessDep) -> LetterView:
    """Mail an invitation to the address that it was made for. The letter has a link of its own: the
    one that was shown stops working when it is sent."""
    letters.require_mail(process)
    process.transact(letters.mail_invite, invite_id, person, process, now=utc_now())
    return LetterView(message="The invitation is on its way.")
