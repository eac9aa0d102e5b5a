#!/usr/bin/env bash
# cluster.sh [HUB.TOML]: three nodes and a NATS server on loopback, until Ctrl-C. Needs nats-server and wireloom on the PATH, or
# the program in WIRELOOM.
set -euo pipefail
wireloom=${WIRELOOM:-wireloom}
for program in nats-server "$wireloom"; do
    command -v "$program" >/dev/null || { echo "$program is not installed" >&2; exit 1; }
done
hub=()
[ $# = 0 ] || hub=(--hub "$1")
store=$(mktemp -d)
processes=()
stop() {
    trap - EXIT INT TERM
    # Nodes first, so that they can send their clients away.
    for ((i = ${#processes[@]} - 1; i >= 0; i--)); do
        kill "${processes[i]}" 2>/dev/null && wait "${processes[i]}" 2>/dev/null
    done
    rm -rf "$store"
}
trap stop EXIT
trap 'exit 0' INT TERM
nats-server -a 127.0.0.1 -p 4222 -js -sd "$store" -l "$store/nats.log" &
processes+=($!)
for _ in $(seq 100); do
    (exec 3<>/dev/tcp/127.0.0.1/4222) 2>/dev/null && break
    sleep 0.1
done
for port in 8001 8002 8003; do
    "$wireloom" serve --listen "127.0.0.1:$port" "${hub[@]}" --nats nats://127.0.0.1:4222 &
    processes+=($!)
done
wait
