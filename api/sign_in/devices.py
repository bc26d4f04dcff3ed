"""Names of browsers and systems, from the User-Agent that a client sends."""

# The first match counts: Edge and Opera also claim to be Chrome, Chrome also claims to be Safari.
BROWSERS = {
    "Edg/": "Edge",
    "OPR/": "Opera",
    "Firefox/": "Firefox",
    "Chrome/": "Chrome",
    "Safari/": "Safari",
    "trainyard/": "command line",
}
SYSTEMS = {
    "Windows": "Windows",
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


def device_of(user_agent: str) -> str:
    """Return `Firefox on Linux`, `command line`, or `unknown program`. A hint: clients may lie."""
    browser = next((name for mark, name in BROWSERS.items() if mark in user_agent), None)
    if browser is None:
        return "unknown program"
    system = next((name for mark, name in SYSTEMS.items() if mark in user_agent), None)
    return f"{browser} on {system}" if system else browser
