"""Hosts that programs may reach, by name: how they are written, and what each of them covers.

Pure, and with the standard library only: the proxy of a program imports nothing else.

    pypi.org               one host, port 443
    registry.example:5000  another port
    *.hf.co                every name below hf.co, at any depth, not hf.co itself
    private:pypi.lab       a host of the site's own network, which other rules never reach
    pypi, huggingface      a group: GROUPS

Addresses are never hosts, in no spelling.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HTTPS = 443
PRIVATE = "private:"
MAX_RULES = 100
MAX_NAME = 253
# By the projects' own pages on proxies and firewalls, checked 2026-11-25; check them yearly.
GROUPS = {
    "pypi": ("pypi.org", "files.pythonhosted.org"),
    "huggingface": ("huggingface.co", "*.hf.co"),
}
LABEL = re.compile(r"^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$")
NUMBER = re.compile(r"^([0-9]+|0x[0-9a-f]*)$")  # a last label like this makes a name an address


@dataclass(frozen=True)
class HostRule:
    """A host with its port, or all hosts below a name."""

    name: str
    """Name in lower case, without a dot at its end."""
    port: int = HTTPS
    is_wildcard: bool = False
    is_private: bool = False
    """True if it may have an address of the site's own network."""

    def __str__(self) -> str:
        star, marker = "*." if self.is_wildcard else "", PRIVATE if self.is_private else ""
        port = "" if self.port == HTTPS else f":{self.port}"
        return f"{marker}{star}{self.name}{port}"

    def allows(self, name: str, port: int) -> bool:
        """Return True if this is the rule of a host."""
        if port != self.port:
            return False
        return name.endswith(f".{self.name}") if self.is_wildcard else name == self.name

    def covers(self, other: "HostRule") -> bool:
        """Return True if this rule allows all hosts that the other one allows."""
        if not other.is_wildcard:
            return self.allows(other.name, other.port)
        is_below = other.name == self.name or other.name.endswith(f".{self.name}")
        return self.is_wildcard and is_below and other.port == self.port


def host_name(text: str) -> str:
    """Return a host's name in its one spelling: lower case, no dot at the end.

    Raises ValueError if it is not a name, such as an address, or one in letters beyond ASCII.
    """
    name = text.lower().removesuffix(".")
    if not text.isascii():
        raise ValueError(f"{text!r} has letters beyond ASCII; write it as it is in DNS (xn--...)")
    labels = name.split(".")
    if len(name) > MAX_NAME or not all(LABEL.match(label) for label in labels):
        raise ValueError(f"{text[:300]!r} is not the name of a host")
    if NUMBER.match(labels[-1]):
        raise ValueError(f"{text!r} is an address; hosts are reached by their names only")
    return name


def host_and_port(text: str) -> tuple[str, int]:
    """Return the name and port of `name:port`. Raises ValueError, for an address too."""
    name, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text[:300]!r} is not a host with a port")
    return host_name(name), int(port)


def host_rule(text: str) -> HostRule:
    """Return the rule that is written `text`; not a group. Raises ValueError."""
    rest = text.removeprefix(PRIVATE)
    is_wildcard = rest.startswith("*.")
    rest = rest.removeprefix("*.")
    name, port = host_and_port(rest) if ":" in rest else (host_name(rest), HTTPS)
    if is_wildcard and "." not in name:
        raise ValueError(f"{text!r} allows too much; name at least two labels, such as *.hf.co")
    return HostRule(name, port, is_wildcard=is_wildcard, is_private=text.startswith(PRIVATE))


def host_rules(entries: Iterable[str]) -> list[HostRule]:
    """Return the rules of entries, each a rule or a group, in their order and without repeats.

    Raises ValueError, which names the entry.
    """
    found: dict[HostRule, None] = {}
    for entry in entries:
        for text in GROUPS.get(entry, (entry,)):
            found[host_rule(text)] = None
    return list(found)


def hosts_in(text: str) -> list[HostRule]:
    """Return the rules of a text that separates hosts by commas; an empty one, or `none`, has none.

    Raises ValueError, which names the host.
    """
    entries = [entry for part in text.split(",") if (entry := part.strip())]
    return host_rules([] if entries == ["none"] else entries)


def narrowed(wanted: Iterable[HostRule], granted: Sequence[HostRule]) -> list[HostRule]:
    """Return what is both wanted and granted. Only a grant makes a host private."""
    found: dict[HostRule, None] = {}
    for rule in wanted:
        covering = [grant for grant in granted if grant.covers(rule)]
        if covering:
            is_private = any(grant.is_private for grant in covering)
            kept = HostRule(
                rule.name, rule.port, is_wildcard=rule.is_wildcard, is_private=is_private
            )
            found[kept] = None
    return list(found)


def rule_for(name: str, port: int, rules: Iterable[HostRule]) -> HostRule | None:
    """Return the rule that allows a host, a private one first; None if none does."""
    allowing = [rule for rule in rules if rule.allows(name, port)]
    return max(allowing, key=lambda rule: rule.is_private, default=None)


def named(rules: Iterable[HostRule]) -> str:
    """Return rules in a sentence's words."""
    return ", ".join(map(str, rules)) or "none"
