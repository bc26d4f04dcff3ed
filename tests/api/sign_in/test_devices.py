"""What a session is called."""

import pytest

from api.sign_in.devices import device_of

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0"
CHROME = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko)"


@pytest.mark.parametrize(
    ("user_agent", "device"),
    [
        (FIREFOX, "Firefox on Linux"),
        (f"{CHROME} Chrome/142.0.0.0 Safari/537.36 Edg/142.0.0.0", "Edge on Windows"),
        (f"{CHROME} Chrome/142.0.0.0 Safari/537.36", "Chrome on Windows"),
        ("trainyard/0.1.0", "command line"),
        ("curl/8.14.1", "unknown program"),
        ("", "unknown program"),
    ],
)
def test_a_session_is_named_after_what_signed_in(user_agent: str, device: str) -> None:
    assert device_of(user_agent) == device
