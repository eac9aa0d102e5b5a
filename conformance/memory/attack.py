"""Hostile clients that make a server hold memory. Starts the server with a limit, attacks it, and compares its resident memory with
the bound that docs/src/guides/limits.md states: 1.25 times the limit and 32 MiB.

usage: run [LIMIT_IN_MIB [PART_OF_THE_NAME_OF_AN_ATTACK]]
"""

import functools
import re
import subprocess
import sys
import time

from hostile import MIB, Client, echoes, frame, half_messages, http2_heads, short_echoes, unfinished_heads, unfinished_inflating, upgrade

WIRELOOM = sys.argv[1]
LIMIT = int(sys.argv[2] if len(sys.argv) > 2 else 256) * MIB
BOUND = LIMIT * 5 // 4 + 32 * MIB
# Of the bound, the program itself, at first. A debug build may take more.
PROGRAM = 25 * MIB
# An attack that takes less has not arrived.
HELD_MIN = LIMIT // 4
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


# Each with its number of connections.
ATTACKS = {
    "messages that inflate and do not end": (unfinished_inflating, 200),
    # In Linux's default limits, and more than the memory allows.
    "heads of HTTP/1.1 that do not end": (unfinished_heads, LIMIT // MIB * 62),
    "heads of HTTP/2 that are held": (http2_heads, LIMIT // MIB * 3 // 2),
    "echoes of 4 MiB that are not read": (echoes, 200),
    "echoes of 1 MiB that are not read": (short_echoes, 100),
    "messages of 4 MiB without their last byte": (half_messages, 200),
}


def attack(name, parts, reads=False, lasts=ATTACK_S):
    """Returns the server, its clients, and whether the attack took memory and stayed within the bound."""
    server = Server()
    before = server.resident()
    bound = BOUND + max(before - PROGRAM, 0)
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
    has_arrived = most - before >= HELD_MIN and any(client.is_let_in() for client in clients)
    is_within = most <= bound
    verdict = "NOT an attack on" if not has_arrived else "within" if is_within else "EXCEEDS"
    print(f"{name}: {before / MIB:.0f} MiB at first, {most / MIB:.0f} MiB at most, {verdict} {bound / MIB:.0f} MiB", flush=True)
    return server, clients, has_arrived and is_within


def given_back():
    """Clients that each have sent a long message and received its echo leave."""
    count, length = 30, LIMIT // 256 * 50
    message = [upgrade(), frame(0x82, bytes(length))]
    server, clients, is_within = attack("echoes that are read", [list(message) for _ in range(count)], reads=True)
    for client in clients:
        client.socket.close()
    kept, end = server.resident(), time.time() + 15
    while kept > 64 * MIB and time.time() < end:
        time.sleep(0.2)
        kept = server.resident()
    print(f"after they have left: {kept / MIB:.0f} MiB")
    server.stop()
    return is_within and kept <= 64 * MIB


def stays_within(name):
    parts, count = ATTACKS[name]
    server, clients, is_within = attack(name, parts(count))
    server.stop()
    for client in clients:
        client.socket.close()
    return is_within


def main():
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    checks = [functools.partial(stays_within, name) for name in ATTACKS if wanted in name]
    if wanted in "given back":
        checks.append(given_back)
    passed = [check() for check in checks]
    sys.exit(0 if all(passed) else 1)


main()
