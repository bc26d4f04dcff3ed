"""What signed in, as people call it, from what a client says of itself."""

# The first that is found: Edge and Opera say that they are Chrome, Chrome that it is Safari.
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
    """`Firefox on Linux`, `command line`, or `unknown program`. It is a hint: clients may lie."""
    browser = next((name for mark, name in BROWSERS.items() if mark in user_agent), None)
    if browser is None:
        return "unknown program"
    system = next((name for mark, name in SYSTEMS.items() if mark in user_agent), None)
    return f"{browser} on {system}" if system else browser
