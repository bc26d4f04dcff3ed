"""Names of private files: one rule for packing and for archives packed earlier."""

import re
from pathlib import PurePosixPath

HIDDEN = "hidden"
KEY = "it may hold a key or a password; see `trainyard secrets`"
KEYS = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?(\.\w+)?|.*\.(pem|key|p12|pfx|ppk|jks|keystore|kdbx|kubeconfig)|"
    r"(aws[_-]?)?credentials(\.(json|ini|csv|txt|toml|ya?ml))?|client[_-]secrets?.*\.json|service[_-]account.*\.json|"
    r"secrets?\.(json|toml|ya?ml|txt|ini|env)|(api[_-]?|access[_-]?)?(token|key)s?\.(json|txt)|"
    r"password.*\.txt|kubeconfig|htpasswd|_?netrc|.*\.env",
    re.IGNORECASE,
)


def why_private(path: str) -> str:
    """Return why a file is left out unless it is named: HIDDEN or KEY; empty if it is not
    private."""
    *above, name = PurePosixPath(path).parts
    if KEYS.fullmatch(name.lstrip(".")) or name == ".env" or name.startswith(".env."):
        return KEY
    return HIDDEN if any(part.startswith(".") for part in (*above, name)) else ""
