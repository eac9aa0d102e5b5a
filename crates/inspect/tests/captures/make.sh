#!/usr/bin/env bash
# Makes the captures of this directory, on loopback: ./make.sh [NAME...]. Needs root (or the right to capture), tcpdump, tshark,
# python3, and the command built: cargo build -p wireloom-cli.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
wireloom=${WIRELOOM:-../../../../target/debug/wireloom}
port=18080

capture() { # capture NAME COMMAND...: what the command does, in NAME.pcap
    local name=$1; shift
    tcpdump -i lo -U -s 0 -w "$name.pcap" "tcp port $port" 2>/dev/null &
    local dump=$!
    sleep 1
    "$@" || true
    sleep 1
    kill -INT $dump && wait $dump || true
}
serve() { "$wireloom" serve --listen "$1" --log-level error "${@:2}" >/dev/null & server=$!; sleep 1; }
stop() { kill $server; wait $server 2>/dev/null || true; }

plain() { printf 'hello\nwörld\n' | "$wireloom" connect -q ws://127.0.0.1:$port/echo -H 'Cookie: session=1234' --linger 0.3; }
deflate() { printf '%s\n' '{"name":"wireloom","values":[1,2,3,4,5,6,7,8,9,10],"text":"the quick brown fox jumps over the lazy dog"}' \
    '{"name":"wireloom","values":[1,2,3,4,5,6,7,8,9,10],"text":"the quick brown fox jumps over the lazy dog, again"}' |
    "$wireloom" connect -q --compress ws://127.0.0.1:$port/echo --linger 0.3; }
http2() { printf 'hello over HTTP/2\n' | "$wireloom" connect -q --http2 ws://127.0.0.1:$port/echo --linger 0.3; }
violations() { python3 violations.py $port; }
http2_violations() { python3 http2_violations.py $port; }
ipv6() { printf 'hello over IPv6\n' | "$wireloom" connect -q "ws://[::1]:$port/echo" --linger 0.3; }
tls12() { python3 tls.py $port 1.2 tls12.keys; }
tls13() { python3 tls.py $port 1.3 tls13.keys; }

names=("$@")
[ $# -gt 0 ] || names=(plain deflate http2 ipv6 violations http2_violations tls12 tls13)
for name in "${names[@]}"; do
    case $name in
    # Both ends are in the script.
    http2_violations) serve 127.0.0.1:$((port + 1)) ;;
    ipv6) serve "[::1]:$port" ;;
    tls*) rm -f "$name.keys"; serve 127.0.0.1:$((port + 1)) --tls --tls-listen 127.0.0.1:$port ;;
    *) serve 127.0.0.1:$port ;;
    esac
    capture "$name" "$name"
    stop
done

# The same as pcapng, with the secrets in it.
if [ -e tls13.keys ]; then
    editcap --inject-secrets tls,tls13.keys tls13.pcap tls13.pcapng
fi
