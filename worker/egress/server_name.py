"""Server name that a TLS client asks for in its first message. Pure.

Many sites share a content network's addresses, and only this name says which one is meant: without
a look at it, a program that may reach one of them could reach all the others.
Source: RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3.
"""

import struct

HANDSHAKE, CLIENT_HELLO, SERVER_NAME, HOST_NAME = 22, 1, 0, 0
RECORD = struct.Struct("!BHH")
MAX_RECORD = 1 << 14
MAX_HELLO = 1 << 15


class NotTls(ValueError):
    """The bytes are not the beginning of a TLS connection with a server name."""


class Incomplete(Exception):
    """The first message has not arrived whole yet."""


def server_name(begun: bytes) -> str:
    """Return the server name of a client's first message.

    Raises Incomplete until the message is whole, and NotTls if it is another one or has no name.
    """
    hello = handshake(begun)
    reader = FieldReader(hello)
    reader.skip(2 + 32)  # version, random
    reader.skip(reader.number(1))  # session
    reader.skip(reader.number(2))  # cipher suites
    reader.skip(reader.number(1))  # compressions
    extensions = FieldReader(reader.take(reader.number(2)))
    while extensions.left:
        kind, body = extensions.number(2), FieldReader(extensions.take(extensions.number(2)))
        if kind != SERVER_NAME:
            continue
        names = FieldReader(body.take(body.number(2)))
        if names.number(1) != HOST_NAME:
            break
        name = names.take(names.number(2))
        if names.left:
            break  # two names: which of them counts would be the server's choice
        return name.decode("ascii", "replace")
    raise NotTls("the TLS connection names no server")


def handshake(begun: bytes) -> bytes:
    """Return the body of the first handshake message, put together from its records."""
    message, at = b"", 0
    while True:
        if begun[at : at + 1] not in (b"", bytes([HANDSHAKE])):
            raise NotTls("it is not a TLS connection")
        if len(begun) - at < RECORD.size:
            raise Incomplete
        _, version, size = RECORD.unpack_from(begun, at)
        if version >> 8 != 3 or not 0 < size <= MAX_RECORD:
            raise NotTls("it is not a TLS connection")
        at += RECORD.size
        message += begun[at : at + size]
        if message[:1] not in (b"", bytes([CLIENT_HELLO])):
            raise NotTls("it does not begin as a TLS client does")
        if len(message) >= 4:
            length = int.from_bytes(message[1:4])
            if length > MAX_HELLO:
                raise NotTls("its first TLS message is too long")
            if len(message) >= 4 + length:
                return message[4 : 4 + length]
        if len(begun) < at + size:
            raise Incomplete
        at += size


class FieldReader:
    """Reader of fields, one after another; a field that is cut short is not TLS."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    @property
    def left(self) -> int:
        return len(self.content) - self.at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise NotTls("its first TLS message is cut short")
        self.at += size
        return self.content[self.at - size : self.at]

    def skip(self, size: int) -> None:
        self.take(size)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))
