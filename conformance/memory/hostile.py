"""What hostile clients send: parts of a stream for each connection, to a server that never gets their end or is not read."""

import socket
import struct
import zlib

MIB = 1 << 20


class Client:
    """Sends `parts` as fast as the server takes them, and reads nothing unless `reads`."""

    def __init__(self, address, parts, reads=False):
        self.socket = socket.socket()
        if not reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(address)
        self.socket.setblocking(False)
        self.parts, self.at, self.reads = parts, 0, reads
        # The beginning of a response that lets the attack go on, and of the one that arrived.
        self.wanted = next((response for start, response in OPENINGS if parts[0].startswith(start)), b"")
        self.response = b""

    def send(self):
        """Returns the number of bytes that the server has taken."""
        sent = 0
        while self.parts:
            try:
                len_ = self.socket.send(memoryview(self.parts[0])[self.at:self.at + 256 * 1024])
            except BlockingIOError:
                break
            except OSError:
                self.parts = []
                break
            sent += len_
            self.at += len_
            if self.at == len(self.parts[0]):
                self.parts, self.at = self.parts[1:], 0
        if self.reads:
            try:
                while received := self.socket.recv(1 << 20):
                    self.response = self.response or received
            except OSError:
                pass
        return sent

    def is_let_in(self):
        """Whether the server has accepted the connection for what the attack is about."""
        try:
            self.response = self.response or self.socket.recv(64)
        except OSError:
            pass
        return self.response.startswith(self.wanted)


# How a stream begins, and how the response to it does: 101, and SETTINGS whose length fits into a byte.
OPENINGS = (b"GET /echo", b"HTTP/1.1 101"), (b"PRI * HTTP/2.0", b"\0\0")

UPGRADE = (
    "GET /echo HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)


def upgrade(deflate=False):
    extensions = "Sec-WebSocket-Extensions: permessage-deflate\r\n" if deflate else ""
    return (UPGRADE + extensions + "\r\n").encode()


def frame(first, payload):
    """A masked frame; the key is zero."""
    if len(payload) > 0xFFFF:
        length = b"\xff" + struct.pack(">Q", len(payload))
    else:
        length = b"\xfe" + struct.pack(">H", len(payload))
    return bytes([first]) + length + bytes(4) + payload


def unfinished_inflating(count):
    compress = zlib.compressobj(9, zlib.DEFLATED, -15)
    payload = compress.compress(bytes(8 * MIB)) + compress.flush(zlib.Z_SYNC_FLUSH)
    # RSV1, and not FIN.
    return [[upgrade(deflate=True), frame(0x42, payload)] for _ in range(count)]


def half_messages(count):
    whole = frame(0x82, bytes(4 * MIB))
    return [[upgrade(), whole[:-1]] for _ in range(count)]


def echoes(count):
    whole = frame(0x82, bytes(4 * MIB))
    return [[upgrade(), whole, whole] for _ in range(count)]


def short_echoes(count):
    whole = frame(0x82, bytes(MIB))
    return [[upgrade()] + [whole] * 64 for _ in range(count)]


def unfinished_heads(count):
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"x-%d: %s\r\n" % (at, b"v" * 1000) for at in range(14))
    return [[head] for _ in range(count)]


def http2_frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(text):
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, out = len(text) - 127, bytearray([127])
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    out.append(rest)
    return bytes(out) + text


def http2_heads(count):
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/echo"), (b":authority", b"a")]
    fields += [(b"x-%d" % at, b"v" * 1000) for at in range(12)]
    block = b"".join(b"\0" + literal(name) + literal(value) for name, value in fields)
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, b"") + http2_frame(4, 1, 0, b"")
    # END_HEADERS, and not END_STREAM.
    streams = b"".join(http2_frame(1, 4, 1 + 2 * at, block) for at in range(100))
    return [[opening, streams] for _ in range(count)]
