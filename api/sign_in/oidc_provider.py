"""One OpenID provider over HTTP: its sign-in address, and the claims that it vouches for.

Authorization code flow with PKCE (RFC 7636), OpenID Connect Core 1.0 and Discovery 1.0. The
provider's metadata and keys are kept for an hour; a token with an unknown key fetches them anew.

Authlib and joserfc are imported with the first trip: with what they need they take 10 MiB.
"""

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import httpx2
import structlog
from pydantic import BaseModel, ValidationError

from api.middleware.headers import is_loopback
from core.base.clock import utc_now
from core.base.errors import Unauthenticated, Unavailable
from core.process.settings import ApiSettings

if TYPE_CHECKING:
    from joserfc.jwk import KeySet, KeySetSerialization

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
LEEWAY_S = 60  # between the provider's clock and ours
KEPT_S = 3600.0
AWAY_S = 5.0  # how long a provider that did not answer is not asked again
TIMEOUT_S = 5.0

log = structlog.get_logger()


class ProviderAway(Unavailable):
    """The provider does not answer, or does not answer as an OpenID provider."""

    code = "oidc_unreachable"


class NotVouched(Unauthenticated):
    """The provider did not identify the person, or its proof of identity is not valid."""

    code = "oidc_refused"


class Metadata(BaseModel):
    """Metadata published by a provider, as far as it is used here."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    scopes_supported: list[str] = []
    token_endpoint_auth_methods_supported: list[str] = ["client_secret_basic"]


@dataclass(frozen=True)
class Trip:
    """One trip to the provider and back. Its values come from a secret only the browser has."""

    secret: str

    @property
    def state(self) -> str:
        """Value that comes back with the code: it proves that this browser began the trip."""
        return self._part("state")

    @property
    def nonce(self) -> str:
        """Value that comes back in the ID token: it proves that the token is for this trip."""
        return self._part("nonce")

    @property
    def verifier(self) -> str:
        """Proof for the provider that the code is redeemed by the party that asked for it."""
        return self._part("verifier")

    def _part(self, name: str) -> str:
        code = hmac.digest(self.secret.encode(), name.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(code).rstrip(b"=").decode()


@dataclass(frozen=True)
class Claims:
    """Claims about a person that the provider vouches for."""

    issuer: str
    subject: str
    email: str | None
    """Mail address in lower case; None if there is none or the provider has not verified it."""
    name: str
    """User name or full name of the person at the provider; may be empty."""
    zone: str
    groups: frozenset[str]


class Provider:
    """The provider that the settings name."""

    def __init__(self, settings: ApiSettings) -> None:
        self.name = settings.oidc_title
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret.get_secret_value()
        self._groups_claim = settings.oidc_groups_claim
        self._asks_groups = bool(settings.oidc_roles or settings.oidc_labs)
        self._kept: tuple[float, Metadata, KeySet] | None = None
        self._away_until = 0.0
        self._lock = threading.Lock()
        # Sign-ins are rare: a connection that was kept would be a dead one.
        self._http = httpx2.Client(
            timeout=TIMEOUT_S,
            follow_redirects=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    def address(self, trip: Trip, *, back_to: str) -> str:
        """Return the address to which to send the browser. Raises ProviderAway."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        metadata, _ = self._known()
        scope = "openid email profile"
        if self._asks_groups and "groups" in metadata.scopes_supported:
            scope += " groups"
        return str(
            prepare_grant_uri(
                metadata.authorization_endpoint,
                self._client_id,
                "code",
                redirect_uri=back_to,
                scope=scope,
                state=trip.state,
                nonce=trip.nonce,
                code_challenge=create_s256_code_challenge(trip.verifier),
                code_challenge_method="S256",
            )
        )

    def claims_of(self, code: str, trip: Trip, *, back_to: str) -> Claims:
        """Redeem a code for claims about the person. Raises NotVouched, ProviderAway."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        metadata, keys = self._known()
        id_token, access_token = self._redeem(metadata, code, trip, back_to)
        try:
            try:
                token = jwt.decode(id_token, keys, algorithms=list(ALGORITHMS))
            except InvalidKeyIdError:  # have the keys been changed?
                _, keys = self._known(anew=True)
                token = jwt.decode(id_token, keys, algorithms=list(ALGORITHMS))
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": metadata.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "sub": {"essential": True},
                    "nonce": {"essential": True, "value": trip.nonce},
                },
                params={
                    "nonce": trip.nonce,
                    "client_id": self._client_id,
                    "access_token": access_token,
                },
            )
            claims.validate(now=int(utc_now().timestamp()), leeway=LEEWAY_S)
        except (JoseError, ValueError) as error:
            log.warning("id_token_refused", issuer=self._issuer, error=str(error))
            raise NotVouched(
                f"{self.name} sent an identity token that is not valid: {error}. Try again; "
                "if it happens again, tell an administrator."
            ) from error
        return _read(claims, self._groups_claim)

    def look(self) -> str:
        """Fetch the metadata anew; return the sign-in address. Raises ProviderAway."""
        metadata, _ = self._known(anew=True)
        return metadata.authorization_endpoint

    def _redeem(
        self, metadata: Metadata, code: str, trip: Trip, back_to: str
    ) -> tuple[str, str | None]:
        """Return the ID token, and the access token if any, for a code. Raises NotVouched."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": back_to,
            "code_verifier": trip.verifier,
        }
        auth = None
        if "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            auth = httpx2.BasicAuth(self._client_id, self._client_secret)
        else:
            form |= {"client_id": self._client_id, "client_secret": self._client_secret}
        answer = self._ask("POST", metadata.token_endpoint, data=form, auth=auth)
        document = _document(answer)
        if answer.status_code != 200 or not isinstance(document.get("id_token"), str):
            why = document.get("error_description") or document.get("error") or answer.status_code
            log.warning("code_refused", issuer=self._issuer, error=str(why))
            raise NotVouched(f"{self.name} did not confirm this sign-in ({why}). Start again.")
        access_token = document.get("access_token")
        return document["id_token"], access_token if isinstance(access_token, str) else None

    def _known(self, *, anew: bool = False) -> "tuple[Metadata, KeySet]":
        """Return the provider's metadata and keys, fetched if they are not fresh enough."""
        with self._lock:
            now = time.monotonic()
            if not anew and self._kept is not None and now < self._kept[0] + KEPT_S:
                return self._kept[1:]
            if now < self._away_until:
                raise self._away("it did not answer a moment ago")
            try:
                self._kept = (now, *self._discover())
            except ProviderAway:
                self._away_until = time.monotonic() + AWAY_S
                raise
            return self._kept[1:]

    def _discover(self) -> "tuple[Metadata, KeySet]":
        from authlib.oidc.discovery import get_well_known_url
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            found = self._ask("GET", get_well_known_url(self._issuer, external=True))
            metadata = Metadata.model_validate_json(found.content)
            if metadata.issuer.rstrip("/") != self._issuer.rstrip("/"):
                raise self._away(f"it calls itself {metadata.issuer}")
            for address in (
                metadata.authorization_endpoint,
                metadata.token_endpoint,
                metadata.jwks_uri,
            ):
                if not is_safe_address(address):
                    raise self._away(f"{address} is not encrypted")
            published = cast("KeySetSerialization", _document(self._ask("GET", metadata.jwks_uri)))
            keys = KeySet.import_key_set(published)  # it looks closely
        except (ValidationError, JoseError, ValueError, KeyError) as error:
            raise self._away("its answer is not that of an OpenID provider") from error
        return metadata, keys

    def _ask(
        self,
        method: str,
        url: str,
        *,
        data: Mapping[str, str] | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.Response:
        try:
            return self._http.request(
                method, url, data=data, auth=auth, headers={"Accept": "application/json"}
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._away(str(error) or type(error).__name__) from error

    def _away(self, why: str) -> ProviderAway:
        log.warning("oidc_unreachable", issuer=self._issuer, error=why)
        return ProviderAway(
            f"{self.name} cannot be used right now ({why}). Sign in with your password or a "
            "login link, or try again later; administrators: trainyard doctor --server."
        )


def provider_flaw(settings: ApiSettings) -> str | None:
    """Return the flaw in the provider's settings; None without a flaw or without a provider."""
    if not settings.oidc_issuer:
        return None
    for name in ("oidc_client_id", "oidc_client_secret"):
        if not getattr(settings, name):
            return (
                f"TRAINYARD_OIDC_ISSUER is set, but TRAINYARD_{name.upper()} is not. Set "
                "both or none."
            )
    if not is_safe_address(settings.oidc_issuer):
        return f"TRAINYARD_OIDC_ISSUER={settings.oidc_issuer} must begin with https://."
    return None


def is_safe_address(url: str) -> bool:
    """Return True if requests to this address are encrypted, or stay on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (
        parts.scheme == "http" and is_loopback((parts.hostname or "").lower())
    )


def _read(claims: Mapping[str, Any], groups_claim: str) -> Claims:
    email = claims.get("email")
    groups = claims.get(groups_claim, [])
    listed = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    return Claims(
        issuer=str(claims["iss"]),
        subject=str(claims["sub"]),
        email=str(email).lower() if email and claims.get("email_verified") is True else None,
        name=str(claims.get("preferred_username") or claims.get("name") or ""),
        zone=str(claims.get("zoneinfo") or "UTC"),
        # Keycloak writes a group as its path: /lab/vision
        groups=frozenset(str(group).removeprefix("/") for group in listed),
    )


def _document(answer: httpx2.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
