"""Hostile clients that make a server hold memory. Starts the server with a limit, attacks it, and compares its resident memory with
the bound that docs/src/guides/limits.md states: 1.25 times the limit and 32 MiB; and for each worker half of the longest message, where
long messages grow.

usage: run [LIMIT_IN_MIB [PART_OF_THE_NAME_OF_AN_ATTACK]]
"""

import os
import re
import socket
import struct
import subprocess
import sys
import time
import zlib

MIB = 1 << 20
WIRELOOM = sys.argv[1]
LIMIT = int(sys.argv[2] if len(sys.argv) > 2 else 256) * MIB
BOUND = LIMIT * 5 // 4 + 32 * MIB
# --max-message is 64 MiB by default.
GROWTH = len(os.sched_getaffinity(0)) * 32 * MIB
# An attack sends until the server takes no more for this long, at most.
QUIET_S, ATTACK_S = 3, 25


class Server:
    def __init__(self):
        command = [WIRELOOM, "serve", "--listen", "127.0.0.1:0", "--max-memory", str(LIMIT), "--max-body", "1M"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while True:
            line = self.process.stdout.readline()
            if not line:
                sys.exit("the server has ended")
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found:
                break
        self.address = ("127.0.0.1", int(found[1]))

    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) << 10

    def stop(self):
        self.process.kill()
        self.process.wait()


class Client:
    """Sends `parts` as fast as the server takes them, and reads nothing unless `reads`."""

    def __init__(self, address, parts, reads=False):
        self.socket = socket.socket()
        if not reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(address)
        self.socket.setblocking(False)
        self.parts, self.at, self.reads = parts, 0, reads

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
                while self.socket.recv(1 << 20):
                    pass
            except OSError:
                pass
        return sent


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


def unfinished_inflating():
    compress = zlib.compressobj(9, zlib.DEFLATED, -15)
    payload = compress.compress(bytes(8 * MIB)) + compress.flush(zlib.Z_SYNC_FLUSH)
    # RSV1, and not FIN.
    return [[upgrade(deflate=True), frame(0x42, payload)] for _ in range(200)]


def half_messages():
    whole = frame(0x82, bytes(4 * MIB))
    return [[upgrade(), whole[:-1]] for _ in range(200)]


def echoes():
    whole = frame(0x82, bytes(4 * MIB))
    return [[upgrade(), whole, whole] for _ in range(200)]


def unfinished_heads():
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"x-%d: %s\r\n" % (at, b"v" * 1000) for at in range(14))
    # In Linux's default limits, and more than the memory allows.
    return [[head] for _ in range(LIMIT // MIB * 62)]


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


def http2_heads():
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/echo"), (b":authority", b"a")]
    fields += [(b"x-%d" % at, b"v" * 1000) for at in range(12)]
    block = b"".join(b"\0" + literal(name) + literal(value) for name, value in fields)
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, b"") + http2_frame(4, 1, 0, b"")
    # END_HEADERS, and not END_STREAM.
    streams = b"".join(http2_frame(1, 4, 1 + 2 * at, block) for at in range(100))
    return [[opening, streams] for _ in range(LIMIT // MIB * 3 // 2)]


ATTACKS = {
    "messages that inflate and do not end": unfinished_inflating,
    "heads of HTTP/1.1 that do not end": unfinished_heads,
    "heads of HTTP/2 that are held": http2_heads,
    "echoes of 4 MiB that are not read": echoes,
    "messages of 4 MiB without their last byte": half_messages,
}


def attack(name, parts, reads=False, lasts=ATTACK_S, bound=BOUND):
    """Returns the server, its clients, and the most memory that it held."""
    server = Server()
    before = server.resident()
    most, clients, quiet_since, end = before, [], time.time(), time.time() + lasts
    waiting = list(parts)
    while time.time() < end and time.time() - quiet_since < QUIET_S:
        sent = 0
        for _ in range(min(50, len(waiting))):
            try:
                clients.append(Client(server.address, waiting.pop(), reads))
            except OSError:
                break
        for client in clients:
            sent += client.send()
        most = max(most, server.resident())
        if sent:
            quiet_since = time.time()
        else:
            time.sleep(0.005)
    verdict = "within" if most <= bound else "EXCEEDS"
    print(f"{name}: {before / MIB:.0f} MiB at first, {most / MIB:.0f} MiB at most, {verdict} {bound / MIB:.0f} MiB", flush=True)
    return server, clients, most


def given_back():
    """Clients that each have sent a long message and received its echo leave."""
    count, length = 30, LIMIT // 256 * 50
    message = [upgrade(), frame(0x82, bytes(length))]
    server, clients, most = attack("echoes that are read", [list(message) for _ in range(count)], reads=True, bound=BOUND + GROWTH)
    for client in clients:
        client.socket.close()
    kept, end = server.resident(), time.time() + 15
    while kept > 64 * MIB and time.time() < end:
        time.sleep(0.2)
        kept = server.resident()
    print(f"after they have left: {kept / MIB:.0f} MiB")
    server.stop()
    return most <= BOUND + GROWTH and kept <= 64 * MIB


def main():
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    failed = 0
    for name, parts in ATTACKS.items():
        if wanted in name:
            # Messages that inflate grow too.
            bound = BOUND + GROWTH if parts is unfinished_inflating else BOUND
            server, clients, most = attack(name, parts(), bound=bound)
            failed += most > bound
            server.stop()
            for client in clients:
                client.socket.close()
    if wanted in "given back":
        failed += not given_back()
    sys.exit(1 if failed else 0)


main()
