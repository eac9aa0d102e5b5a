#!/usr/bin/env bash
# cluster.sh [HUB.TOML]: a NATS server and three nodes on loopback, until Ctrl-C.
#
# Needs nats-server (on the PATH or installed by go) and wireloom (in WIRELOOM, on the PATH, or built from this checkout).
# NATS_PORT is the port of NATS (4222); PORT is the port of the first node (8001), the others follow it.
set -uo pipefail
nats_port=${NATS_PORT:-4222} first_port=${PORT:-8001}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)

fail() {
    echo "cluster.sh: $*" >&2
    exit 1
}

PATH=$PATH:$HOME/go/bin
command -v go >/dev/null && PATH=$PATH:$(go env GOPATH)/bin
command -v nats-server >/dev/null \
    || fail "nats-server is not installed: go install github.com/nats-io/nats-server/v2@latest, or apt-get install nats-server"
wireloom=${WIRELOOM:-$(command -v wireloom)}
if [ -z "$wireloom" ]; then
    echo "building wireloom"
    cargo build --release --manifest-path "$root/Cargo.toml" -p wireloom-cli || fail "wireloom could not be built"
    wireloom=${CARGO_TARGET_DIR:-$root/target}/release/wireloom
fi
[ -x "$wireloom" ] || fail "$wireloom is not a program"
options=()
if [ $# -gt 0 ]; then
    [ -r "$1" ] || fail "$1 cannot be read"
    options=(--hub "$1")
fi

store=$(mktemp -d) || exit 1
nodes=() nats=
stop() {
    trap - EXIT INT TERM
    # Nodes first, so that they can ask their clients to reconnect.
    [ ${#nodes[@]} = 0 ] || kill "${nodes[@]}" 2>/dev/null
    [ ${#nodes[@]} = 0 ] || wait "${nodes[@]}" 2>/dev/null
    [ -z "$nats" ] || kill "$nats" 2>/dev/null
    [ -z "$nats" ] || wait "$nats" 2>/dev/null
    rm -rf "$store"
}
trap stop EXIT
trap 'exit 0' INT TERM

# listens PORT PROCESS: waits until something listens there.
listens() {
    local _
    for _ in $(seq 200); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        kill -0 "$2" 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}

nats-server -a 127.0.0.1 -p "$nats_port" -js -sd "$store" -l "$store/nats.log" &
nats=$!
listens "$nats_port" "$nats" && kill -0 "$nats" 2>/dev/null \
    || fail "nats-server did not start on port $nats_port: $(tail -n 1 "$store/nats.log" 2>/dev/null)"
for port in "$first_port" $((first_port + 1)) $((first_port + 2)); do
    "$wireloom" serve --listen "127.0.0.1:$port" --nats "nats://127.0.0.1:$nats_port" ${options[@]+"${options[@]}"} \
        >"$store/$port.log" 2>&1 &
    nodes+=($!)
    listens "$port" $! && kill -0 $! 2>/dev/null || fail "a node did not start on port $port: $(cat "$store/$port.log")"
    echo "ws://127.0.0.1:$port/connection/websocket"
done
echo "three nodes are ready; Ctrl-C ends them"
# Until one of the processes ends by itself.
wait -n "$nats" "${nodes[@]}"
fail "a process ended: $(tail -qn 1 "$store"/*.log)"
