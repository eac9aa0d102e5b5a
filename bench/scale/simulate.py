#!/usr/bin/env python3
"""What connections cost at scale: sums from measured costs, and a discrete-event simulation of clients that reconnect at once.

usage: simulate.py           prints the tables of docs/scale.md
       simulate.py --page    writes them into it
       simulate.py --check WIRELOOM
                             opens 1,000, 10,000 and 15,000 connections at once to a real server, beside the simulation;
                             run it while nothing else runs
"""

import heapq
import os
import random
import re
import resource
import subprocess
import sys
import time

# Measured; docs/scale.md says where. Processor time in seconds, memory in bytes.
OPEN_S = 25e-6  # a handshake
JOIN_S = 44e-6  # a handshake, the client's connect command and a subscription
DELIVERY_S = 8.6e-6  # a message of 128 B to one of 19,000 subscribers, one message at a time
BURST_S = 0.40e-6  # the same in bursts of 16, to one of 1,000: no larger channel was measured in bursts
PROCESS_B = 2_480  # an idle connection, in the process
KERNEL_B = 4_230  # its socket, in the kernel
SUBSCRIBER_B = 1_303  # a connection with a subscription, growth of the process

# A processor is planned to be busy for half of the time.
LOAD = 0.5
# A client gives up an attempt after this time, and tries again after 1, 2, 4 ... 20 s, each times a random part from a half to one.
CONNECT_TIMEOUT_S, BACKOFF_S, BACKOFF_MAX_S = 10.0, 1.0, 20.0


def storm(clients, cores, jitter_s, service_s=JOIN_S, seed=1):
    """Clients lose their node at time 0 and connect to others, each after a random part of `jitter_s`. The seconds until 99 % are
    connected, the 99th percentile of the successful attempts, and the share of the work that was for clients that had given up."""
    chance = random.Random(seed)
    # (time, client, attempt); the servers work first in, first out.
    arrivals = [(chance.random() * jitter_s, client, 0) for client in range(clients)]
    heapq.heapify(arrivals)
    free = [0.0] * cores
    waits, ends, wasted, works = [], [], 0, 0
    while arrivals:
        at, client, attempt = heapq.heappop(arrivals)
        begin = max(at, heapq.heappop(free))
        end = begin + service_s
        heapq.heappush(free, end)
        works += 1
        if end - at <= CONNECT_TIMEOUT_S:
            waits.append(end - at)
            ends.append(end)
        else:
            wasted += 1
            backoff = min(BACKOFF_S * 2**attempt, BACKOFF_MAX_S) * chance.uniform(0.5, 1)
            heapq.heappush(arrivals, (at + CONNECT_TIMEOUT_S + backoff, client, attempt + 1))
    ends.sort()
    waits.sort()
    return ends[int(len(ends) * 0.99)], waits[int(len(waits) * 0.99)], wasted / works


def gigabytes(count):
    return f"{count / 1e9:,.2f} GB" if count < 1e10 else f"{count / 1e9:,.0f} GB"


def cores(count):
    return f"{count:,.2f}" if count < 10 else f"{count:,.0f}"


def sums():
    rows = ["| | 10,000 | 1 million | 100 million |", "| --- | --- | --- | --- |"]
    sizes = (10_000, 1_000_000, 100_000_000)

    def row(name, cell):
        rows.append(f"| {name} | " + " | ".join(cell(size) for size in sizes) + " |")

    row("memory of the processes, idle", lambda n: gigabytes(n * PROCESS_B))
    row("the same, if each subscribes to a channel", lambda n: gigabytes(n * SUBSCRIBER_B))
    row("memory of the kernel, idle", lambda n: gigabytes(n * KERNEL_B))
    for rate, name in ((0.01, "one message in 100 s each"), (0.1, "one in 10 s"), (1, "one a second")):
        row(f"cores for {name}", lambda n: cores(n * rate * DELIVERY_S / LOAD))
    row("cores for one a second, in bursts of 16", lambda n: cores(n * BURST_S / LOAD))
    row("core seconds to accept all again", lambda n: cores(n * JOIN_S))
    return "\n".join(rows)


def storms():
    rows = [
        "| clients | cores | connect within | cores are busy for | 99 % are back after | an attempt takes, 99 % | work for clients that gave up |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for clients, cores, jitters in ((100_000, 2, (0, 5)), (1_000_000, 4, (0, 5, 15, 60)), (1_000_000, 16, (0, 5))):
        for jitter in jitters:
            back, p99, wasted = storm(clients, cores, jitter)
            busy = clients * JOIN_S / cores
            attempt = "under 1 ms" if p99 < 1e-3 else f"{p99:.1f} s"
            rows.append(f"| {clients:,} | {cores} | {jitter} s | {busy:.1f} s | {back:.1f} s | {attempt} | {wasted:.0%} |")
    return "\n".join(rows)


def page(tables):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/scale.md")
    with open(path) as file:
        text = file.read()
    for name, table in tables.items():
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda found: f"{found[1]}{table}\n{found[2]}", text, flags=re.S)
    with open(path, "w") as file:
        file.write(text)


def check(wireloom):
    """Connections that all open at once, to one worker: the time until the last is open, beside the simulation of as many."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print("| connections at once | memory of the process, each | of the kernel | processor time, each | all open after: simulated | real |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count in (1_000, 10_000, 15_000):
        serve = [wireloom, "serve", "--listen", "127.0.0.1:0", "--workers", "1"]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        url = f"ws://{re.search(r'127[.]0[.]0[.]1:[0-9]+', server.stdout.readline())[0]}/echo"

        def usage():
            with open(f"/proc/{server.pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            with open(f"/proc/{server.pid}/status") as file:
                resident = int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), resident

        def kernel():
            with open("/proc/meminfo") as file:
                return int(re.search(r"Slab:\s+(\d+)", file.read())[1]) << 10

        def files():
            return len(os.listdir(f"/proc/{server.pid}/fd"))

        (cpu, resident), open_before, slab = usage(), files(), kernel()
        load = [wireloom, "load", url, "--scenario", "idle", "-c", str(count), "-d", "10s", "--quiet"]
        began, load = time.monotonic(), subprocess.Popen(load, stdout=subprocess.DEVNULL)
        while files() < open_before + count and load.poll() is None:
            time.sleep(0.002)
        real = time.monotonic() - began
        (open_cpu, open_resident), open_slab = usage(), kernel()
        if load.poll() is not None:
            sys.exit(f"{count} connections were not opened")
        load.terminate()
        load.wait()
        server.terminate()
        server.wait()
        each = (open_cpu - cpu) / count
        simulated = storm(count, 1, 0, each)[0]
        memory = (open_resident - resident) / count
        # Both ends are on this machine.
        sockets = (open_slab - slab) / count / 2
        print(f"| {count:,} | {memory:,.0f} B | {sockets:,.0f} B | {each * 1e6:.0f} µs | {simulated:.2f} s | {real:.2f} s |", flush=True)


if sys.argv[1:2] == ["--check"] and len(sys.argv) == 3:
    check(sys.argv[2])
elif sys.argv[1:] == ["--page"]:
    page({"sums": sums(), "storms": storms()})
elif not sys.argv[1:]:
    print(sums(), storms(), sep="\n\n")
else:
    sys.exit(__doc__)
