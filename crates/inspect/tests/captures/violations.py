"""A client that breaks rules: each rule on a connection of its own. violations.py PORT"""
import socket, struct, sys

REQUEST = ("GET /echo HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
KEY = bytes([1, 2, 3, 4])


def masked(payload):
    return bytes(byte ^ KEY[at % 4] for at, byte in enumerate(payload))


def frame(first, payload, mask=True):
    length = len(payload)
    head = bytes([first, (0x80 if mask else 0) | length])
    return head + (KEY + masked(payload) if mask else payload)


CASES = [
    frame(0x81, b"unmasked", mask=False),
    frame(0x83, b"reserved opcode"),
    frame(0xC1, b"reserved bit"),
    frame(0x81, b"\xc3\x28"),
    frame(0x80, b"no message"),
    frame(0x01, b"first ") + frame(0x81, b"second"),
    frame(0x01, b"one ") + frame(0x89, b"ping") + frame(0x00, b"two ") + frame(0x80, b"three"),
    frame(0x88, struct.pack(">H", 1005)),
    bytes([0x81, 0xFE, 0, 5]) + KEY + masked(b"short"),
    frame(0x88, struct.pack(">H", 1000) + b"bye") + frame(0x81, b"after close"),
]
port = int(sys.argv[1])
for case in CASES:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(REQUEST.format(port=port).encode())
    client.recv(4096)
    client.sendall(case)
    client.settimeout(0.5)
    try:
        while client.recv(4096):
            pass
    except OSError:
        pass
    client.close()
