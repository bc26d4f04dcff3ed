"""A small OpenID provider for tests: real HTTP, real RSA keys, and it lies where it is told to."""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "trainyard", "the secret of a client"


@cache
def key_of(kid: str) -> RSAKey:
    """The key of this name; making one takes a moment, so it is the same in every test."""
    return new_key(kid)


def new_key(kid: str) -> RSAKey:
    """An RSA key that signs."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"}, private=True)


@dataclass
class OpenId:
    """What it knows and how it behaves. Whoever comes is signed in as `person`, without a word."""

    issuer: str
    key: RSAKey
    """Signs ID tokens."""
    shown: list[RSAKey]
    """The keys that it publishes."""
    person: dict[str, Any] = field(default_factory=dict)
    """Claims of who signs in."""
    lies: dict[str, Any] = field(default_factory=dict)
    """Claims that ID tokens have instead of the right ones; None leaves one out."""
    algorithm: str = "RS256"
    refuses: str = ""
    """The error that it sends back instead of a code."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What it says of itself instead of the truth."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Paths of all requests."""

    def discovery(self) -> dict[str, Any]:
        """OpenID Connect Discovery 1.0, section 3."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "scopes_supported": ["openid", "email", "profile", "groups"],
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.metadata,
        }

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser goes next."""
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert "openid" in asked["scope"].split()
        assert asked["code_challenge_method"] == "S256"
        back = {"state": asked["state"]}
        if self.refuses:
            back["error"] = self.refuses
        else:
            back["code"] = secrets.token_urlsafe(16)
            self.codes[back["code"]] = asked
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def redeem(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Tokens for a code, once (RFC 6749, section 4.1.3; RFC 7636, section 4.6)."""
        asked = self.codes.pop(form.get("code", ""), None)
        if not authorization.startswith("Basic "):
            return 401, {"error": "invalid_client"}
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or create_s256_code_challenge(form["code_verifier"]) != asked["code_challenge"]
        ):
            return 400, {"error": "invalid_grant", "error_description": "This code is no good."}
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.person,
            **self.lies,
        }
        told = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.algorithm, "kid": self.key.kid}
        id_token = jwt.encode(header, told, self.key, algorithms=[self.algorithm])
        answer = {"access_token": "unused", "token_type": "Bearer", "id_token": id_token}
        return 200, answer


@contextmanager
def running_openid() -> Iterator[OpenId]:
    """A provider that listens on a free port of this machine."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            openid.asked.append(parts.path)
            if parts.path == "/.well-known/openid-configuration":
                self.answer(200, openid.discovery())
            elif parts.path == "/keys":
                keys = [key.as_dict(private=False) for key in openid.shown]
                self.answer(200, {"keys": keys})
            elif parts.path == "/authorize":
                self.send_response(302)
                self.send_header("Location", openid.authorize(asked))
                self.end_headers()
            else:
                self.answer(404, {})

        def do_POST(self) -> None:
            openid.asked.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self.answer(*openid.redeem(form, self.headers.get("Authorization", "")))

        def answer(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    key = key_of("first")
    openid = OpenId(issuer=f"http://127.0.0.1:{server.server_port}", key=key, shown=[key])
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield openid
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
