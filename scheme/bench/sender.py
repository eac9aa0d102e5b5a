"""Sends text messages to the benchmark: `sender.py PORT LENGTH ascii|multibyte COUNT`. Each is sent when a message has arrived."""

import os
import socket
import sys

port, length, kind, count = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
word = b"Wireloom ".ljust(16, b"x") if kind == "ascii" else "aé€😀é€é".encode()
payload = word * (length // len(word))
payload += b"x" * (length - len(payload))
key = os.urandom(4)
masked = int.from_bytes(payload, "big") ^ int.from_bytes((key * (length // 4 + 1))[:length], "big")
frame = b"\x81\xff" + length.to_bytes(8, "big") + key + masked.to_bytes(length, "big")

with socket.create_connection(("127.0.0.1", port)) as peer:
    peer.sendall(
        b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    response = b""
    while b"\r\n\r\n" not in response:
        response += peer.recv(4096)
    response = response.split(b"\r\n\r\n", 1)[1]
    for _ in range(count):
        while not response:
            response = peer.recv(4096)
        response = b""
        peer.sendall(frame)
    peer.recv(4096)
