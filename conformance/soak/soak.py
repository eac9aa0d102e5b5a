"""The soak: rounds of honest and hostile load on one server, which rests at the end of each round. Writes rounds.json.

usage: soak.py WIRELOOM DIRECTORY DURATION
"""

import collections
import json
import os
import re
import shutil
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from hostile import Client, echoes, half_messages, http2_heads, unfinished_heads, unfinished_inflating

MIB = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))
# Load, and the rest after it in which hostile clients have left and nothing is sent.
LOAD_S, REST_S = 50, 10
# Maximum growth over the run, in the resting state of the rounds.
MEMORY_MAX, FILES_MAX = 16 * MIB, 8
# Delay of each write in every third round, as of a slow disk.
SLOW_MS = 40
# The allocator's and the histories' memory fills up first: this part of the rounds is not compared.
WARMUP = 0.2

# Honest clients: name, path, options of `wireloom load`.
LOADS = [
    ("echo", "ws", "/echo", ["-r", "200", "-c", "20", "--size", "32:90,16K:10"]),
    ("echo over TLS", "wss", "/echo", ["-k", "-r", "100", "-c", "10", "--compress", "--size", "1K"]),
    ("echo over HTTP/2", "ws", "/echo", ["--http2", "--streams", "10", "-r", "200", "-c", "20"]),
    ("requests over HTTP/2", "http", "/echo", ["-r", "200", "-c", "4", "--size", "1K", "--check"]),
    ("requests over HTTP/1.1", "http", "/echo", ["--http1.1", "-r", "100", "-c", "4", "--size", "1K", "--check"]),
    ("rooms", "ws", "/rooms/soak", ["--scenario", "rooms", "-r", "20", "-c", "40"]),
    ("churn", "ws", "/echo", ["--scenario", "churn", "-r", "50", "-c", "5"]),
]

# Hostile clients, few of each at a time: they must be bearable, not the whole load.
HOSTILE = [(unfinished_inflating, 3), (half_messages, 5), (echoes, 5), (unfinished_heads, 50), (http2_heads, 3)]


def seconds(duration):
    return int(duration[:-1]) * {"h": 3600, "m": 60, "s": 1}[duration[-1]]


class Server:
    def __init__(self, wireloom, kept):
        self.kept = kept
        self.slow_disk = os.path.join(kept, "slow_disk")
        self.config = os.path.join(kept, "soak.toml")
        shutil.copy(os.path.join(HERE, "soak.toml"), self.config)
        shutil.rmtree(os.path.join(kept, "data"), ignore_errors=True)
        self.renew_certificate()
        self.set_disk(0)
        self.wireloom = wireloom
        self.start()

    def start(self):
        command = [self.wireloom, "serve", "--listen", "127.0.0.1:0", "--tls", "--tls-listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        command += ["--cert", self.path("cert.pem"), "--key", self.path("key.pem"), "--max-memory", "256M", "--handshake-timeout", "5s"]
        command += ["--hub", self.config, "--demo", "--data", self.path("data"), "--slow-timeout", "10s"]
        environment = dict(os.environ, LD_PRELOAD=self.path("slow_disk.so"), SLOW_DISK=self.slow_disk)
        with open(self.path("serve.log"), "w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        self.addresses = {}
        while not all(name in self.addresses for name in ("http", "https", "admin")):
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"the server has ended: see {self.path('serve.log')}")
            found = re.search(r"(https?)://(127\.0\.0\.1:\d+)", line)
            if found:
                self.addresses.setdefault("admin" if line.startswith("admin") else found[1], found[2])

    def path(self, name):
        return os.path.join(self.kept, name)

    def url(self, scheme, path):
        return f"{scheme}://{self.addresses['https' if scheme == 'wss' else 'http']}{path}"

    def set_disk(self, milliseconds):
        with open(self.slow_disk + ".new", "w") as file:
            file.write(str(milliseconds))
        os.replace(self.slow_disk + ".new", self.slow_disk)

    def renew_certificate(self):
        request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        request += ["-subj", "/CN=localhost", "-keyout", self.path("key.new"), "-out", self.path("cert.new")]
        subprocess.run(request, check=True, capture_output=True)
        os.replace(self.path("key.new"), self.path("key.pem"))
        os.replace(self.path("cert.new"), self.path("cert.pem"))

    def reload(self, round_):
        with open(self.config, "a") as file:
            file.write(f"# round {round_}\n")
        self.process.send_signal(1)

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def has_newest_certificate(self):
        host, port = self.addresses["https"].split(":")
        with open(self.path("cert.pem")) as file:
            expected = ssl.PEM_cert_to_DER_cert(file.read())
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)))) == expected

    def status(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            text = file.read()
        return {
            "resident": int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) << 10,
            "files": len(os.listdir(f"/proc/{self.process.pid}/fd")),
            "threads": int(re.search(r"Threads:\s+(\d+)", text)[1]),
        }

    def api(self, method, body):
        headers = {"X-API-Key": "soak", "Content-Type": "application/json"}
        url = f"http://{self.addresses['admin']}/api/{method}"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30) as response:
            answer = json.load(response)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]


class Publisher(threading.Thread):
    """Publishes to a channel whose history is on the disk, and keeps the position that the server acknowledged last."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.offset, self.times, self.failures, self.ends = server, 0, [], [], False

    def run(self):
        while not self.ends:
            begin = time.monotonic()
            try:
                result = self.server.api("publish", {"channel": "kept:log", "data": {"at": self.offset}})
                if result["offset"] != self.offset + 1:
                    self.failures.append(f"offset {result['offset']} after {self.offset}")
                self.offset = result["offset"]
                self.times.append(time.monotonic() - begin)
            except (OSError, RuntimeError) as error:
                self.failures.append(str(error))
            time.sleep(0.05)


def attack(server, end, let_in):
    """Hostile clients come in turn, all that the list has, until `end`. Counts those that the server has let in, by their kind."""
    host, port = server.addresses["http"].split(":")
    clients, at = [], 0
    while time.monotonic() < end:
        build, count = HOSTILE[at % len(HOSTILE)]
        at += 1
        new = []
        for parts in build(count):
            try:
                new.append(Client((host, int(port)), parts))
            except OSError:
                pass
        clients += new
        until = min(end, time.monotonic() + 5)
        while time.monotonic() < until:
            for client in clients:
                client.send()
            time.sleep(0.02)
        let_in[build.__name__] += sum(client.is_let_in() for client in new)
        # The older half leaves, in the middle of what it sends.
        for client in clients[: len(clients) // 2]:
            client.socket.close()
        clients = clients[len(clients) // 2 :]
    for client in clients:
        client.socket.close()


def has_slow_disk(number):
    return number % 3 == 2


def run_round(server, publisher, wireloom, number, let_in):
    # The disk is slow in each third round, the certificate is new in each fourth, the configuration is read in each fifth.
    server.set_disk(SLOW_MS if has_slow_disk(number) else 0)
    if number % 4 == 3:
        server.renew_certificate()
    if number % 5 == 4:
        server.reload(number)
    times_before, end = len(publisher.times), time.monotonic() + LOAD_S
    hostile = threading.Thread(target=attack, args=(server, end, let_in))
    loads = []
    for name, scheme, path, options in LOADS:
        command = [wireloom, "load", server.url(scheme, path), "-d", f"{LOAD_S}s", "--json", "--quiet", *options]
        loads.append((name, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)))
    hostile.start()
    peak = server.status()
    while time.monotonic() < end:
        time.sleep(0.5)
        now = server.status()
        peak = {name: max(peak[name], now[name]) for name in peak}
    round_ = {"peak": peak, "loads": {}, "publish": publisher.times[times_before:]}
    for name, process in loads:
        out, err = process.communicate(timeout=120)
        try:
            result = json.loads(out)
            latency, errors = result["latency"] or {}, result["errors"]
            round_["loads"][name] = {"answered": result["answered"], "p50": latency.get("p50"), "p99": latency.get("p99"), "errors": errors["total"], "first": errors["first"]}
        except (ValueError, KeyError):
            round_["loads"][name] = {"answered": 0, "p50": None, "p99": None, "errors": 1, "first": err.strip() or out.strip()}
    hostile.join()
    time.sleep(REST_S)
    round_["rest"] = server.status()
    round_["certificate"] = server.has_newest_certificate()
    round_["publish"] = {"count": len(round_["publish"]), "p50": statistics.median(round_["publish"] or [0])}
    return round_


def growth(values):
    """What the median of slopes makes of the values from the first to the last (Theil and Sen)."""
    slopes = [(b - a) / (j - i) for i, a in enumerate(values) for j, b in enumerate(values) if j > i]
    return statistics.median(slopes) * (len(values) - 1) if slopes else 0


def judge(rounds, publisher, kept_offset, let_in):
    """Prints each verdict; the list of those that failed."""
    failed = []

    def check(name, holds, found):
        print(f"{'ok' if holds else 'FAILED'}: {name}: {found}")
        if not holds:
            failed.append(name)

    compared = rounds[int(len(rounds) * WARMUP) :]
    memory = growth([round_["rest"]["resident"] for round_ in compared])
    check(f"resident memory at rest grew by at most {MEMORY_MAX // MIB} MiB", memory <= MEMORY_MAX, f"{memory / MIB:+.1f} MiB")
    files = growth([round_["rest"]["files"] for round_ in compared])
    check(f"open files at rest grew by at most {FILES_MAX}", files <= FILES_MAX, f"{files:+.1f}")
    for name, *_ in LOADS:
        results = [round_["loads"][name] for round_ in rounds]
        errors = [f"round {at}: {result['errors']}, {result['first']}" for at, result in enumerate(results) if result["errors"]]
        check(f"{name} without errors", not errors, "; ".join(errors[:3]) or f"{sum(result['answered'] for result in results):,} answers")
        medians = [result["p50"] for result in results[int(len(results) * WARMUP) :] if result["p50"]]
        part = max(1, len(medians) // 4)
        first, last = statistics.median(medians[:part]), statistics.median(medians[-part:])
        check(f"{name}: the median latency of the last quarter is at most twice that of the first and 5 ms", last <= 2 * first + 0.005, f"{first * 1e3:.2f} ms, {last * 1e3:.2f} ms")
    # Of a program that the preloaded library does not reach, the disk is never slow.
    slow = [round_["publish"]["p50"] for at, round_ in enumerate(rounds) if has_slow_disk(at)]
    check(f"the disk is slow in each third round, by {SLOW_MS} ms", min(slow, default=0) >= SLOW_MS / 1e3, f"{min(slow, default=0) * 1e3:.1f} ms at least")
    check("the server has the newest certificate after each round", all(round_["certificate"] for round_ in rounds), f"{len(rounds)} rounds")
    kinds = [build.__name__ for build, _ in HOSTILE]
    check("hostile clients of each kind are let in", all(let_in[kind] for kind in kinds), ", ".join(f"{let_in[kind]} {kind}" for kind in kinds))
    check("every publication was acknowledged", not publisher.failures, "; ".join(publisher.failures[:3]) or f"{publisher.offset:,}")
    check("after a restart the history ends where the last acknowledgement was", kept_offset == publisher.offset, f"{kept_offset:,}")
    return failed


def main():
    wireloom, kept, duration = sys.argv[1], sys.argv[2], seconds(sys.argv[3])
    server = Server(os.path.abspath(wireloom), kept)
    publisher = Publisher(server)
    publisher.start()
    began, rounds, let_in = time.time(), [], collections.Counter()
    try:
        while time.time() - began < duration:
            rounds.append(run_round(server, publisher, wireloom, len(rounds), let_in))
            rest, left = rounds[-1]["rest"], duration - (time.time() - began)
            errors = sum(load["errors"] for load in rounds[-1]["loads"].values())
            p50 = rounds[-1]["loads"]["echo"]["p50"] or 0
            print(f"round {len(rounds)}: {rest['resident'] / MIB:.0f} MiB, {rest['files']} files at rest; {rounds[-1]['peak']['resident'] / MIB:.0f} MiB at most; echo {p50 * 1e3:.2f} ms; {errors} errors; {max(0, left) / 60:.0f} min left")
    except KeyboardInterrupt:
        print("interrupted: what was measured is judged")
    publisher.ends = True
    publisher.join()
    ended = server.stop()
    server.start()
    kept_offset = server.api("history", {"channel": "kept:log", "limit": 0})["offset"]
    server.stop()
    failed = judge(rounds, publisher, kept_offset, let_in) + ([f"the server ended with {ended}"] if ended else [])
    with open(os.path.join(kept, "rounds.json"), "w") as file:
        json.dump({"began": began, "time": time.time() - began, "published": publisher.offset, "failed": failed, "rounds": rounds}, file)
    sys.exit(1 if failed else 0)


main()
