# shellcheck shell=bash
# The step capi: libwireloom installed as a user installs it, and C programs over it.

# capi_program NAME SOURCE [FLAG…]: compiles a program against the installed library.
capi_program() {
    local name=$1 source=$2
    shift 2
    # shellcheck disable=SC2046 # pkg-config prints several flags
    cc -std=c11 -Wall -Wextra -Werror -g -pthread "$@" "crates/capi/$source" -o "$capi/bin/$name" \
        $(PKG_CONFIG_PATH=$capi/lib/pkgconfig pkg-config --cflags --libs wireloom) "-Wl,-rpath,$capi/lib"
}

# capi_echo SUFFIX [COMMAND…]: the echo client against the echo server, both built with a suffix, the server run by a command.
capi_echo() {
    local suffix=$1 input output port rc
    shift
    # The server ends when its standard input does.
    coproc SERVER { "$@" "$capi/bin/echo_server$suffix"; }
    # shellcheck disable=SC2153 # coproc sets it
    output=${SERVER[0]} input=${SERVER[1]}
    local pid=$SERVER_PID
    read -r -t 60 -u "$output" _ port || { echo "the echo server has not started"; return 1; }
    timeout 300 "$capi/bin/echo_client$suffix" "$port"
    rc=$?
    exec {input}>&-
    wait "$pid" || { echo "the echo server ended with $?"; return 1; }
    return $rc
}

# The HTTP/2 client against nghttpd.
capi_http2() {
    local www=$capi/www port pid rc=0 line expected
    mkdir -p "$www"
    echo hello >"$www/index.html"
    head -c 300000 /dev/zero >"$www/zeros"
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])') || return
    nghttpd --no-tls -d "$www" -a 127.0.0.1 "$port" &
    pid=$!
    for _ in $(seq 100); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
        sleep 0.1
    done
    "$capi/bin/http2_client" "$port" / /zeros /missing >"$capi/responses" || rc=1
    kill "$pid"
    wait "$pid" 2>/dev/null
    for expected in "200 6 /" "200 300000 /zeros" "404 [0-9]* /missing"; do
        grep -qx "$expected" "$capi/responses" || { echo "no response: $expected"; rc=1; }
    done
    while read -r line; do echo "http2_client: $line"; done <"$capi/responses"
    return $rc
}

step_capi() {
    [ "$(uname -s)" = Linux ] || { skip "the shared library is linked on Linux only"; return; }
    local tool
    for tool in cc pkg-config python3; do have $tool || { skip "no $tool: apt-get install build-essential pkg-config python3"; return; }; done
    local capi=$target/capi/test name sanitize=(-fsanitize=address,undefined -fno-sanitize-recover=all)
    mkdir -p "$capi/bin"
    # Its header is compared with the declarations by the step unit.
    crates/capi/install --prefix "$capi" --profile dev || return
    # Only the functions of the header are exported, each with its version.
    nm -D --defined-only "$capi/lib/libwireloom.so" | sed -n 's/^.* T //p' | sort >"$capi/symbols"
    grep -oE '^[a-z].*\bwl_[a-z0-9_]+\(' "$capi/include/wireloom.h" | grep -oE 'wl_[a-z0-9_]+\($' | tr -d '(' | grep -v '^wl_str$' \
        | sed 's/$/@@WIRELOOM_0.1/' | sort | diff - "$capi/symbols" || { echo "the symbols differ from the header"; return 1; }
    echo "$(wc -l <"$capi/symbols") functions"
    for name in examples/echo_server examples/http2_client tests/c/echo_client tests/c/misuse tests/c/vectors; do
        capi_program "${name##*/}" "$name.c" "${sanitize[@]}" || return
        capi_program "${name##*/}.plain" "$name.c" -O1 || return
    done
    # The header is also C++.
    echo '#include <wireloom.h>' | c++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only -I "$capi/include" -x c++ - || return
    "$capi/bin/misuse" && "$capi/bin/vectors" testing/vectors && capi_echo "" || return
    if have nghttpd; then capi_http2 || return; else skip "the HTTP/2 example is only compiled: apt-get install nghttp2-server"; fi
    # The race beside other libraries, once with few turns.
    if [ -e /usr/include/libwebsockets.h ] && [ -e /usr/include/wslay/wslay.h ]; then
        capi_program sockets benches/sockets.c -O2 -Wl,--no-as-needed -lwebsockets -lwslay && "$capi/bin/sockets" 3 || return
    else
        skip "the race beside other libraries: apt-get install libwebsockets-dev libwslay-dev"
    fi
    if have valgrind; then
        local valgrind=(valgrind -q --error-exitcode=9 --leak-check=full --show-leak-kinds=definite,indirect)
        "${valgrind[@]}" "$capi/bin/misuse.plain" && capi_echo .plain "${valgrind[@]}" || return
    else
        skip "memory under valgrind: apt-get install valgrind"
    fi
    capi_abi
}

# The binary interface against the committed one. WIRELOOM_RENEW_ABI=1 writes it after an intended change.
capi_abi() {
    have abidw && have abidiff || { skip "the binary interface is not compared: apt-get install abigail-tools"; return 0; }
    local baseline=crates/capi/abi/$(uname -m).abi
    abidw --no-comp-dir-path --no-corpus-path --no-show-locs --no-linux-kernel-mode --type-id-style hash "$capi/lib/libwireloom.so" --out-file "$capi/current.abi" || return
    if [ -n "${WIRELOOM_RENEW_ABI-}" ]; then
        mkdir -p crates/capi/abi
        # Without the parts of the standard library, which declare nothing here.
        sed '/<abi-instr /{N;/\n *<\/abi-instr>$/d}' "$capi/current.abi" >"$baseline"
    fi
    [ -f "$baseline" ] || { echo "limited: no baseline of the binary interface for $(uname -m)"; return 0; }
    abidiff --no-added-syms "$baseline" "$capi/current.abi" || { echo "the binary interface has changed: WIRELOOM_RENEW_ABI=1 ./test capi"; return 1; }
}
