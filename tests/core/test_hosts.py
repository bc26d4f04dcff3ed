"""Hosts by name: what is one, what a rule covers, and what no spelling of an address can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.spec.hosts import (
    GROUPS,
    HostRule,
    host_and_port,
    host_name,
    host_rule,
    host_rules,
    named,
    narrowed,
    rule_for,
)

ADDRESSES = (
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "0",
    "127.0.0.1.", "127.0.0.0x1", "[::1]", "[::ffff:127.0.0.1]", "::1", "fe80::1%eth0", "1.2.3.4",
    "169.254.169.254", "0xA9FEA9FE", "[fd00:ec2::254]", "a.0x", "example.1",
)  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_not_a_host_in_any_spelling(address: str) -> None:
    for text in (address, address.upper(), f"{address}:443", f"private:{address}"):
        with pytest.raises(ValueError, match=r"address|not the name|not a host"):
            host_rule(text)
    with pytest.raises(ValueError, match=r"address|not the name|not a host"):
        host_and_port(f"{address}:443")


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", "-a.b", "a b.c", "a/b", "user@pypi.org", "pypi.org\r\nHost: x", "a" * 64,
     "pypi.org:", "pypi.org:0", "pypi.org:65536", "pypi.org:443:80", "pypi.org:4a", "pypi.org..",
     "*.org", "*", "*.*.org", "x*.hf.co", "http://pypi.org", "pypi\u3002org", "\u0440ypi.org"],
)  # fmt: skip
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not|allows|beyond"):
        host_rule(text)


def test_a_name_has_one_spelling() -> None:
    assert host_name("PyPI.org.") == "pypi.org"
    assert host_and_port("FILES.pythonhosted.ORG.:443") == ("files.pythonhosted.org", 443)
    assert host_name("xn--bcher-kva.example") == "xn--bcher-kva.example"
    with pytest.raises(ValueError, match="xn--"):
        host_name("b\u00fccher.example")


def test_a_rule_allows_its_host_at_its_port_alone() -> None:
    rules = host_rules(["pypi", "*.hf.co", "registry.example:5000"])
    assert named(rules) == "pypi.org, files.pythonhosted.org, *.hf.co, registry.example:5000"
    for name, port in (
        ("pypi.org", 443),
        ("cdn.hf.co", 443),
        ("a.b.hf.co", 443),
        ("registry.example", 5000),
    ):
        assert rule_for(name, port, rules) is not None
    for name, port in (
        ("hf.co", 443),
        ("evilhf.co", 443),
        ("pypi.org.evil.example", 443),
        ("x.pypi.org", 443),
        ("xn--pypi.org", 443),
        ("pypi.org", 80),
        ("cdn.hf.co", 22),
        ("registry.example", 443),
    ):
        assert rule_for(name, port, rules) is None


def test_a_job_gets_what_is_asked_and_granted_and_only_a_grant_makes_private() -> None:
    granted = host_rules(["*.hf.co", "private:registry.example:5000", "pypi.org"])
    asked = host_rules(["cdn.hf.co", "*.cdn.hf.co", "registry.example:5000", "pypi", "*.co.uk"])
    assert named(narrowed(asked, granted)) == (
        "cdn.hf.co, *.cdn.hf.co, private:registry.example:5000, pypi.org"
    )
    assert not host_rule("pypi.org").covers(host_rule("*.pypi.org"))
    assert not host_rule("*.a.hf.co").covers(host_rule("*.hf.co"))


names = st.from_regex(r"[a-z][a-z0-9]{0,5}(\.[a-z][a-z0-9]{0,5}){1,3}", fullmatch=True)
rules = st.builds(
    HostRule, names, st.sampled_from([443, 80]), is_wildcard=st.booleans(), is_private=st.booleans()
)


@given(rules)
def test_a_rule_is_read_as_it_is_written(rule: HostRule) -> None:
    assert host_rule(str(rule)) == rule


@given(st.lists(rules, max_size=5), st.lists(rules, max_size=5), names, st.sampled_from([443, 80]))
def test_what_is_narrowed_allows_nothing_that_is_not_granted(
    asked: list[HostRule], granted: list[HostRule], name: str, port: int
) -> None:
    if rule_for(name, port, narrowed(asked, granted)) is not None:
        assert rule_for(name, port, asked) is not None
        assert rule_for(name, port, granted) is not None


def test_groups_are_of_public_hosts_at_https() -> None:
    for hosts in GROUPS.values():
        assert all(rule.port == 443 and not rule.is_private for rule in host_rules(hosts))
