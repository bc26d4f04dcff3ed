"""Connection to one server over HTTP: retries safe requests and turns refusals into errors.

A create carries one `Idempotency-Key` that all its tries share, so that a lost answer never makes
two jobs. A request is retried after a failed or broken connection, after 502, 503 and 504, and
after a 429 that says when to retry.
"""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

import httpx2

from trainyard.errors import (
    BadInput,
    ConnectionFailed,
    Item,
    NotFound,
    UnexpectedAnswer,
    kind_of,
)
from trainyard.transport.config import Access, is_readable_on_the_way

JSON = "application/json"
YAML = "application/yaml"
AGAIN = frozenset({502, 503, 504})

Parameter = str | int | float | bool
Chunks = Callable[[], Iterator[bytes]]  # called once for each try


@dataclass(frozen=True)
class Patience:
    """Limits for retries.

    Waits double from `first_s` to `longest_s`, each shortened by up to half.
    """

    retries: int = 4
    first_s: float = 0.5
    longest_s: float = 8.0
    longest_retry_after_s: float = 60.0
    """Longest wait that a server may ask for; if it asks for more, its answer is raised at once."""

    def wait_s(self, attempt: int, *, jitter: float) -> float:
        """Return the seconds before the try after number `attempt` (from 0); `jitter` is from 0
        to 1."""
        return min(self.longest_s, self.first_s * 2.0**attempt) * (1 - jitter / 2)


@dataclass(frozen=True)
class Upload:
    """A request body that is read anew for each try."""

    chunks: Chunks
    size: int
    content_type: str


class Connection:
    """HTTP connection that sends the token. `transport` and `sleep` can be replaced in tests."""

    def __init__(
        self,
        access: Access,
        *,
        timeout_s: float = 30.0,
        patience: Patience | None = None,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if access.token is not None and not (access.token.isascii() and access.token.isprintable()):
            raise BadInput("The token has characters that tokens never contain; copy it again.")
        self.access = access
        self.url = access.url
        self.patience = patience or Patience()
        self.sleep = sleep
        headers = {"User-Agent": f"trainyard/{client_version()}", "Accept": JSON}
        if access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        self._timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, 10.0))
        self._http = httpx2.Client(
            base_url=access.url,
            headers=headers,
            timeout=self._timeout,
            transport=transport,
            # A proxy of the environment can't reach this machine's loopback.
            trust_env=access.url.startswith("https:") or is_readable_on_the_way(access.url),
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get(self, path: str, **params: Parameter | None) -> Any:
        """Send a GET and return the answer's JSON."""
        return self._json(self._exchange("GET", path, params=params))

    def text(self, path: str, **params: Parameter | None) -> str:
        """Send a GET and return the answer as text, whatever its type."""
        return self._exchange("GET", path, params=params, headers={"Accept": "*/*"}).text

    def post(
        self,
        path: str,
        body: object = None,
        *,
        keyed: bool = True,
        params: Mapping[str, Parameter] | None = None,
    ) -> Any:
        """Send a POST and return the answer's JSON, or None if it is empty.

        `keyed` sends an idempotency key, which makes a retry safe.
        """
        content = None if body is None else encode(body)
        headers = {} if content is None else {"Content-Type": JSON}
        return self._json(
            self._exchange(
                "POST", path, params=params, headers=headers, content=content, keyed=keyed
            )
        )

    def post_yaml(
        self, path: str, text: str, *, params: Mapping[str, Parameter] | None = None
    ) -> Any:
        """Send `text` unchanged as YAML and return the answer's JSON."""
        try:
            content = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInput(f"The text has a character that is not UTF-8: {error}") from error
        return self._json(
            self._exchange(
                "POST", path, params=params, headers={"Content-Type": YAML}, content=content
            )
        )

    def patch(self, path: str, body: object) -> Any:
        """Send a PATCH and return the answer's JSON."""
        headers = {"Content-Type": JSON}
        return self._json(self._exchange("PATCH", path, headers=headers, content=encode(body)))

    def put(self, path: str, body: object) -> Any:
        """Send a PUT and return the answer's JSON."""
        headers = {"Content-Type": JSON}
        return self._json(self._exchange("PUT", path, headers=headers, content=encode(body)))

    def upload(self, path: str, body: Upload, /, **params: Parameter | None) -> Any:
        """Stream `body` in a POST and return the answer's JSON."""
        headers = {"Content-Type": body.content_type, "Content-Length": str(body.size)}
        return self._json(
            self._exchange("POST", path, params=params, headers=headers, content=body.chunks)
        )

    def head(self, path: str) -> Mapping[str, str]:
        """Send a HEAD and return the answer's headers."""
        return self._exchange("HEAD", path).headers

    def send_part(self, path: str, headers: Mapping[str, str], chunks: Chunks) -> Mapping[str, str]:
        """Send a PATCH with raw bytes, with a single try, and return the answer's headers."""
        return self._exchange("PATCH", path, headers=headers, content=chunks, retries=0).headers

    def delete(self, path: str) -> Any:
        """Send a DELETE and return the answer's JSON, or None if it is empty."""
        return self._json(self._exchange("DELETE", path))

    @contextmanager
    def download(self, path: str) -> Iterator[httpx2.Response]:
        """Open an answer whose body is read as it arrives."""
        response = self._exchange("GET", path, headers={"Accept": "*/*"}, stream=True)
        with self._closing(response):
            yield response

    @contextmanager
    def event_stream(
        self, path: str, *, last_event_id: str, silence_s: float
    ) -> Iterator[httpx2.EventSource]:
        """Open one connection to a live stream, with a single try."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        response = self._exchange(
            "GET", path, headers=headers, stream=True, retries=0, read_timeout_s=silence_s
        )
        with self._closing(response):
            yield httpx2.EventSource(response)

    # ------------------------------------------------------------------------------------ within

    def _exchange(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Parameter | None] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | Chunks | None = None,
        keyed: bool = True,
        stream: bool = False,
        retries: int | None = None,
        read_timeout_s: float | None = None,
    ) -> httpx2.Response:
        """Send the request until its answer is final; return an answer below 300, raise any
        other."""
        sent = dict(headers or {})
        if method == "POST" and keyed:
            sent["Idempotency-Key"] = uuid.uuid4().hex
        given = {
            name: _written(value) for name, value in (params or {}).items() if value is not None
        }
        timeout = self._timeout
        if read_timeout_s is not None:
            timeout = httpx2.Timeout(read_timeout_s, connect=timeout.connect)
        tries_left = self.patience.retries if retries is None else retries
        attempt = 0
        lost_an_answer = False
        while True:
            request = self._http.build_request(
                method,
                path,
                params=given or None,  # none at all would remove those of the path
                headers=sent,
                content=content() if callable(content) else content,
                timeout=timeout,
            )
            try:
                response = self._http.send(request, stream=stream)
            except httpx2.TransportError as error:
                reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
                if tries_left == 0 or (reached and method == "POST" and not keyed):
                    raise self._unreachable(error, attempt + 1) from error
                lost_an_answer |= reached
                wait_s = self._back_off(attempt)
            else:
                self._http.cookies.clear()  # the token alone identifies the user
                if response.status_code < 300:
                    return response
                with self._closing(response):
                    response.read()
                failure = problem(response)
                if lost_an_answer and method == "DELETE" and isinstance(failure, NotFound):
                    return httpx2.Response(204, request=request)  # the lost answer was its success
                asked_s = self._wait_asked(response, attempt)
                if tries_left == 0 or asked_s is None:
                    raise failure
                wait_s = asked_s
            tries_left -= 1
            attempt += 1
            self.sleep(wait_s)

    def _back_off(self, attempt: int) -> float:
        return self.patience.wait_s(attempt, jitter=random.random())

    def _wait_asked(self, response: httpx2.Response, attempt: int) -> float | None:
        """Return the seconds until the next try; None if there should be none."""
        asked_s = retry_after_s(response)
        if asked_s is not None and asked_s > self.patience.longest_retry_after_s:
            return None
        if response.status_code in AGAIN:
            return self._back_off(attempt) if asked_s is None else asked_s
        return asked_s if response.status_code == 429 else None

    def _unreachable(self, error: httpx2.TransportError, tries: int) -> ConnectionFailed:
        cause = str(error) or type(error).__name__
        after = f" (tried {tries} times)" if tries > 1 else ""
        return ConnectionFailed(
            f"Can't reach {self.url}{after}: {cause}. Is the server up? `trainyard up` starts one "
            "on this machine; `trainyard login URL` sets another address."
        )

    @contextmanager
    def _closing(self, response: httpx2.Response) -> Iterator[None]:
        """Raise ConnectionFailed also for connections that break while a body is read."""
        try:
            yield
        except httpx2.SSEError as error:
            raise UnexpectedAnswer(f"{self.url} sent no event stream: {error}") from error
        except httpx2.TransportError as error:
            raise self._unreachable(error, 1) from error
        finally:
            response.close()

    def _json(self, response: httpx2.Response) -> Any:
        if response.status_code == 204 or not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise UnexpectedAnswer(
                f"{self.url} answered {response.status_code} without JSON. Is it a Trainyard "
                "server? `trainyard login URL` sets another address."
            ) from error


def segment(identifier: str) -> str:
    """Return `identifier` as one part of a path. Raises BadInput if it would name another path."""
    if not identifier.strip() or identifier in (".", ".."):
        raise BadInput(f"{identifier!r} is not a valid id, such as job_01j... or lease_01j...")
    try:
        return quote(identifier, safe="")
    except UnicodeEncodeError as error:
        raise BadInput(f"{identifier!r} is not a valid id") from error


def encode(body: object) -> bytes:
    """Return `body` as JSON. Raises BadInput for values that JSON cannot express."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadInput(f"This can't be sent as JSON: {error}") from error


def problem(response: httpx2.Response) -> Exception:
    """Return the error for an answer of 300 or more; its body must have been read."""
    status = response.status_code
    if status < 400:
        target = response.headers.get("location", "another address")
        return UnexpectedAnswer(
            f"The server redirects to {target}. Use that address: `trainyard login URL`."
        )
    try:
        document = response.json()
        detail, code = str(document["detail"]), str(document["code"])
        items = tuple(
            Item(str(item["param"]), str(item["code"]), str(item["message"]))
            for item in document.get("errors") or []
        )
        param = document.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return foreign_refusal(response)
    return kind_of(status)(
        status,
        code=code,
        detail=detail,
        param=None if param is None else str(param),
        errors=items,
        retry_after_s=retry_after_s(response),
    )


def foreign_refusal(response: httpx2.Response) -> Exception:
    """Return the error for an answer that is not Trainyard's own, such as a proxy's."""
    status, address = response.status_code, response.request.url
    said = " ".join(response.text.split())[:200]
    if status < 500:
        return UnexpectedAnswer(
            f"{address} answered {status}, but not as Trainyard does: {said!r}. Is the address "
            "right? `trainyard login URL` sets another."
        )
    return kind_of(status)(
        status,
        code="no_problem_document",
        detail=f"{address} answered {status}: {said or response.reason_phrase}",
        retry_after_s=retry_after_s(response),
    )


def retry_after_s(response: httpx2.Response) -> float | None:
    """Return the seconds that the answer asks to wait, from a number or a date; None without
    one."""
    given = response.headers.get("retry-after", "")
    if not given:
        return None
    try:
        return max(0.0, float(given))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(given)
    except ValueError:
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def client_version() -> str:
    """Return the installed version of this package."""
    try:
        return version("trainyard-client")
    except PackageNotFoundError:
        return "0"


def _written(value: Parameter) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
