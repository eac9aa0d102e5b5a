#!/usr/bin/env python3
"""Writes the seeds of the HTTP/2 targets: seeds/h2_bytes, seeds/h2_api, seeds/h2_stateless.

Each is what `arbitrary` reads as the target's input: numbers from the front, little-endian; the lengths of slices from
the back; a byte before each item of a list that says whether there is one.
"""

import pathlib
import struct

SEEDS = pathlib.Path(__file__).parent / "seeds"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ALTSVC, ORIGIN, PRIORITY_UPDATE = 0xA, 0xC, 0x10
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


# RFC 7541, Appendix A: POST or GET, https, and the path "/", from the static table.
GET = b"\x82\x87\x84" + literal(b":authority", b"example.org")
POST = b"\x83\x87\x84" + literal(b":authority", b"example.org")
OK = b"\x88"
HELLO = frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)


def write(target, name, data):
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def wire(name, server, data):
    """Bytes to a server or to a client, which has asked on streams 1, 3 and 5."""
    opening = PREFACE + HELLO if server else HELLO
    write("h2_bytes", name, bytes([server]) + struct.pack("<Q", 7) + b"\0\0" + opening + data)


def calls(name, choices, operations):
    """Calls on both ends: (operation, which stream, a number); 14 and more are the server's, 31 lets everything move."""
    items = b"".join(b"\1" + struct.pack("<BBH", *operation) for operation in operations)
    write("h2_api", name, bytes([choices]) + items)


def one(name, kind, flags, stream, payload, fields=()):
    """A frame alone, and the fields of a message."""
    front, back = payload, bytes([len(payload)])
    for field_name, value in fields:
        front += b"\1" + field_name + value
        back = bytes([len(value), len(field_name)]) + back
    data = struct.pack("<BBI", kind, flags, stream) + front + b"\0" + back
    write("h2_stateless", name, data)


def main():
    end = END_HEADERS | END_STREAM
    wire("get", True, frame(HEADERS, end, 1, GET))
    wire("post", True, frame(HEADERS, END_HEADERS, 1, POST + literal(b"content-length", b"5"))
         + frame(DATA, PADDED, 1, b"\2hel\0\0") + frame(DATA, END_STREAM, 1, b"lo"))
    wire("trailers", True, frame(HEADERS, END_HEADERS, 1, POST) + frame(HEADERS, end, 1, literal(b"x", b"y")))
    wire("continuation", True, frame(HEADERS, END_STREAM, 1, GET[:5]) + frame(CONTINUATION, END_HEADERS, 1, GET[5:]))
    wire("connect", True, frame(HEADERS, END_HEADERS, 1, literal(b":method", b"CONNECT")
         + literal(b":protocol", b"websocket") + GET[1:]) + frame(DATA, 0, 1, b"ping"))
    wire("priority_updates", True, frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\1u=1, i") + frame(HEADERS, end, 1, GET)
         + frame(PRIORITY, 0, 3, b"\0\0\0\1\x0f"))
    wire("late", True, frame(HEADERS, END_HEADERS, 1, POST) + frame(WINDOW_UPDATE, 0, 1, bytes(4))
         + frame(DATA, 0, 1, b"late") + frame(RST_STREAM, 0, 1, bytes(4)))
    wire("settings", True, frame(SETTINGS, 0, 0, struct.pack(">HIHIHI", 1, 0, 4, 9, 5, 20000)) + frame(PING, 0, 0, bytes(8)))
    wire("response", False, frame(HEADERS, END_HEADERS, 1, literal(b":status", b"103")) + frame(HEADERS, END_HEADERS, 1, OK)
         + frame(DATA, END_STREAM, 1, b"content"))
    wire("push", False, frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + GET) + frame(HEADERS, end, 2, OK))
    wire("goaway", False, frame(GOAWAY, 0, 0, b"\0\0\0\1\0\0\0\0bye") + frame(RST_STREAM, 0, 1, b"\0\0\0\7"))
    wire("services", False, frame(ALTSVC, 0, 0, b"\0\1ah3") + frame(ORIGIN, 0, 0, b"\0\1a\0\1b"))

    request, respond, data, trailers, reset, release, settings, settle = 0, 19, 1, 3, 4, 8, 9, 31
    calls("exchange", 3, [(request, 1, 0), (settle, 0, 0), (respond, 0, 2), (data + 14, 0, 300), (data + 14, 0, 8)])
    calls("upload", 0, [(request, 0, 0), (data, 0, 39999), (settle, 0, 0), (release + 14, 0, 9999), (trailers, 0, 0)])
    calls("content_length", 3, [(request, 2, 300), (data, 0, 100), (data, 0, 200), (trailers, 0, 0), (settle, 0, 0)])
    calls("many", 3, [(request, 1, 0)] * 9 + [(settle, 0, 0), (reset, 2, 0), (respond, 0, 8), (trailers, 7, 0)])
    calls("windows", 0x30, [(request, 0, 0), (data, 0, 5000), (settle, 0, 0), (settings + 14, 3, 1), (settle, 0, 0),
                            (settings + 14, 3, 4), (settle, 0, 0)])
    calls("push", 3, [(request, 1, 0), (settle, 0, 0), (14, 0, 0), (respond, 1, 2), (data + 14, 1, 8), (settle, 0, 0)])
    calls("shutdown", 3, [(request, 1, 0), (settle, 0, 0), (25, 77, 0), (request, 1, 0), (respond, 0, 8)])

    one("data", DATA, END_STREAM | PADDED, 1, b"\2hi\0\0")
    one("headers", HEADERS, 0x2D, 3, b"\0\0\0\0\1\x0f" + GET)
    one("settings", SETTINGS, 0, 0, struct.pack(">HIHI", 3, 100, 8, 1))
    one("goaway", GOAWAY, 0, 0, b"\0\0\0\1\0\0\0\x0bcalm")
    one("altsvc", ALTSVC, 0, 0, b"\0\1ah3")
    one("origin", ORIGIN, 0, 0, b"\0\1a\0\1b")
    one("priority_update", PRIORITY_UPDATE, 0, 0, b"\0\0\0\5u=2, i")
    one("priority", 0x42, 0, 0, b"i=?0, u=5;a=1, x=(a \"b\" :aGk=:);y")
    one("http2_settings", 0x42, 0, 0, b"AAMAAABkAAQAAP__")
    one("request", 0x42, 0, 0, b"", [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/"),
                                     (b"host", b"example.org:443"), (b"cookie", b"a=b"), (b"content-length", b"0")])
    one("response", 0x42, 0, 0, b"", [(b":status", b"200"), (b"te", b"trailers"), (b"content-length", b"7")])


if __name__ == "__main__":
    main()
