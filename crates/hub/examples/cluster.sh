#!/usr/bin/env bash
# cluster.sh [HUB.TOML]: a NATS server, three nodes and a load balancer on loopback, until Ctrl-C.
#
# Needs nats-server 2.10 (on the PATH or installed by go) and wireloom (in WIRELOOM, on the PATH, or built from this checkout); the
# balancer needs nginx. NATS_PORT is the port of NATS (4222); PORT is the port of the first node (8001), the others follow it, and the
# balancer has the one before.
set -uo pipefail
nats_port=${NATS_PORT:-4222} first_port=${PORT:-8001}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)

fail() {
    echo "cluster.sh: $*" >&2
    exit 1
}

PATH=$PATH:$HOME/go/bin:/usr/sbin
command -v go >/dev/null && PATH=$PATH:$(go env GOPATH)/bin
command -v nats-server >/dev/null \
    || fail "nats-server is not installed: go install github.com/nats-io/nats-server/v2@latest"
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
nodes=() nats= balancer=
stop() {
    trap - EXIT INT TERM
    # Nodes first, so that they can ask their clients to reconnect.
    [ ${#nodes[@]} = 0 ] || kill "${nodes[@]}" 2>/dev/null
    [ ${#nodes[@]} = 0 ] || wait "${nodes[@]}" 2>/dev/null
    local other
    for other in $balancer $nats; do
        kill "$other" 2>/dev/null
        wait "$other" 2>/dev/null
    done
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
if command -v nginx >/dev/null; then
    balancer_port=$((first_port - 1))
    {
        printf 'daemon off;\npid %s/nginx.pid;\nevents {}\nhttp {\naccess_log off;\n' "$store"
        for kind in client_body proxy fastcgi uwsgi scgi; do printf '%s_temp_path %s/%s;\n' $kind "$store" $kind; done
        echo 'upstream hub {'
        printf 'server 127.0.0.1:%s;\n' "$first_port" $((first_port + 1)) $((first_port + 2))
        printf '}\nserver {\nlisten 127.0.0.1:%s;\nlocation / {\n' "$balancer_port"
        # shellcheck disable=SC2016 # variables of nginx
        printf '%s;\n' 'proxy_pass http://hub' 'proxy_http_version 1.1' 'proxy_set_header Upgrade $http_upgrade' \
            'proxy_set_header Connection "upgrade"' 'proxy_set_header Host $http_host'
        printf '}\n}\n}\n'
    } >"$store/nginx.conf"
    nginx -e "$store/nginx.log" -c "$store/nginx.conf" &
    balancer=$!
    listens "$balancer_port" "$balancer" && kill -0 "$balancer" 2>/dev/null \
        || fail "nginx did not start on port $balancer_port: $(tail -n 1 "$store/nginx.log" 2>/dev/null)"
    echo "ws://127.0.0.1:$balancer_port/connection/websocket in front of all"
else
    echo "nginx is not installed: there is no load balancer"
fi
echo "three nodes are ready; Ctrl-C ends them"
# Until one of the processes ends by itself.
wait -n "$nats" "${nodes[@]}" $balancer
fail "a process ended: $(tail -qn 1 "$store"/*.log)"
