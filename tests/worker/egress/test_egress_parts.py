"""Judgement of addresses, and the server name in the first message of TLS."""

import os
import shutil
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from core.spec.hosts import host_rules
from core.wire.messages import HostUse
from worker.egress.addresses import may_connect
from worker.egress.launch import added
from worker.egress.server_name import Incomplete, NotTls, server_name
from worker.preparing.packages import has_index

NEVER = (
    "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "169.254.169.254", "169.254.1.1",
    "fe80::1%eth0", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "100.100.100.200",
    "169.254.170.2", "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:7f00:1::1",
)  # fmt: skip
OF_THE_SITE = (
    "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.1.1", "fd12:3456::1", "::ffff:10.1.2.3",
    "64:ff9b::a01:203",
)  # fmt: skip
OF_THE_INTERNET = ("151.101.0.223", "2a04:4e42::223", "::ffff:151.101.0.223")


@pytest.mark.parametrize("address", NEVER)
def test_no_rule_leads_to_this_machine_its_links_or_a_metadata_service(address: str) -> None:
    assert not may_connect(address, is_private=False)
    assert not may_connect(address, is_private=True)


def test_only_a_private_host_may_have_an_address_of_the_site() -> None:
    for address in OF_THE_SITE:
        assert not may_connect(address, is_private=False), address
        assert may_connect(address, is_private=True), address
    for address in OF_THE_INTERNET:
        assert may_connect(address, is_private=False), address
        assert may_connect(address, is_private=True), address


def hello(name: str | None) -> bytes:
    """The first bytes that this Python's own TLS sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = name is not None
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_the_server_name_is_read_from_openssls_hello_and_no_part_of_it() -> None:
    whole = hello("files.pythonhosted.org")
    assert server_name(whole) == "files.pythonhosted.org"
    assert server_name(whole + b"more") == "files.pythonhosted.org"
    for size in range(len(whole)):
        with pytest.raises(Incomplete):
            server_name(whole[:size])


def test_a_hello_in_several_records_is_put_together() -> None:
    body = hello("pypi.org")[5:]
    pieces = [body[start : start + 50] for start in range(0, len(body), 50)]
    split = b"".join(struct.pack("!BHH", 22, 0x0301, len(piece)) + piece for piece in pieces)
    assert server_name(split) == "pypi.org"


def test_what_is_not_tls_or_names_no_server_is_refused() -> None:
    whole = hello("pypi.org")
    for wrong in (
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x00\x02",  # SSL 2
        hello(None),
        whole[:1] + b"\x09" + whole[2:],
        whole[:3] + b"\xff\xff" + whole[5:],
        whole[:5] + b"\x02" + whole[6:],
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
    ):
        with pytest.raises(NotTls):
            server_name(wrong)


def test_two_names_or_a_broken_extension_are_refused() -> None:
    def with_names(names: bytes) -> bytes:
        extension = struct.pack("!HH", 0, len(names) + 2) + struct.pack("!H", len(names)) + names
        body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
        body += struct.pack("!H", len(extension)) + extension
        message = b"\x01" + len(body).to_bytes(3) + body
        return struct.pack("!BHH", 22, 0x0301, len(message)) + message

    def one(name: bytes) -> bytes:
        return b"\0" + struct.pack("!H", len(name)) + name

    assert server_name(with_names(one(b"pypi.org"))) == "pypi.org"
    for names in (one(b"pypi.org") + one(b"evil.example"), b"\x01\0\x01x", one(b"a")[:-1], b""):
        with pytest.raises(NotTls):
            server_name(with_names(names))


def test_the_index_is_listed_by_its_host_and_port() -> None:
    rules = host_rules(["pypi", "private:pypi.lab.example:8443"])
    assert has_index(rules, None)
    assert has_index(rules, "https://pypi.org/simple")
    assert has_index(rules, "https://user:secret@pypi.lab.example:8443/simple")
    for other in (
        "http://pypi.org/simple",
        "https://pypi.lab.example/simple",
        "https://10.0.0.1/simple",
        "https://pypi.org:99999/",
        "file:///srv/packages",
    ):
        assert not has_index(rules, other), other
    assert not has_index(host_rules(["huggingface"]), None)


def test_uses_of_two_proxies_of_an_attempt_are_added_up() -> None:
    packages = HostUse(host="pypi.org:443", connections=2, sent_bytes=10, received_bytes=100)
    refused = HostUse(host="x.example:443", refused=1, why="first")
    later = HostUse(host="pypi.org:443", connections=1, refused=3, received_bytes=5, why="later")
    assert added([packages, refused], [later]) == (
        HostUse(
            host="pypi.org:443",
            connections=3,
            refused=3,
            sent_bytes=10,
            received_bytes=105,
            why="later",
        ),
        refused,
    )


# The kernel gives an address of IPv6 its route a moment later.
OWN = """
ip link set lo up && ip addr add 151.101.0.223/32 dev lo && ip addr add 2a04:4e42::223/128 dev lo
for _ in $(seq 500); do
    case "$(ip -6 route show table local)" in *2a04:4e42::223*) break ;; esac
    sleep 0.02
done
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a network addresses")
def test_an_address_of_the_internet_that_is_this_machines_is_known() -> None:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("ip or unshare is not installed")
    asks = (
        "from worker.egress.proxy import is_own; print([is_own(each) for each in "
        "('151.101.0.223', '2a04:4e42::223', '127.0.0.1', '151.101.0.224', '2a04:4e42::224')])"
    )
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", OWN, "sh", sys.executable, "-c", asks],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[True, True, True, False, False]\n", done.stderr
