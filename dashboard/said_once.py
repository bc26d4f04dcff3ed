"""The answer to a form, shown on the next page once, so that a reload shows nothing.

It travels in a cookie of that page alone, which the page deletes when it shows it. The cookie is
signed with the viewer's own credentials, so nobody else can put words onto a page.
"""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

from starlette.responses import Response

from dashboard.rendering import redirect
from dashboard.viewer import Viewer

COOKIE = "trainyard_said"
SESSION_COOKIE = "trainyard_session"  # the API's own
LASTS_S = 60


def redirect_saying(viewer: Viewer, path: str, **said: str) -> Response:
    """Go to the page at `path`, which says this once."""
    text = urlsafe_b64encode(json.dumps(said).encode()).decode()
    response = redirect(path)
    response.set_cookie(
        COOKIE,
        f"{text}.{_signature(viewer, text)}",
        max_age=LASTS_S,
        httponly=True,
        samesite="lax",
        secure=viewer.request.url.scheme == "https",
        path=path,
    )
    return response


def said_to(viewer: Viewer) -> dict[str, str]:
    """Return the answer to show on this page; empty if it did not come from this viewer's form."""
    text, _, signature = viewer.request.cookies.get(COOKIE, "").partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(viewer, text).encode()):
        return {}
    said: dict[str, str] = json.loads(urlsafe_b64decode(text))
    return said


def forget(viewer: Viewer, response: Response) -> Response:
    """The page's answer, after which it says it no more."""
    if COOKIE in viewer.request.cookies:
        response.delete_cookie(COOKIE, path=viewer.request.url.path)
    return response


def _signature(viewer: Viewer, text: str) -> str:
    request = viewer.request
    credential = request.headers.get("authorization") or request.cookies.get(SESSION_COOKIE, "")
    return hmac.new(credential.encode(), text.encode(), sha256).hexdigest()
