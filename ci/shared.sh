# shellcheck shell=bash
# What the steps share. `log` is the step's log, file descriptor 3 is the screen.

cores=(-p wireloom-ws -p wireloom-http2)
libraries=("${cores[@]}" -p wireloom -p wireloom-hub -p wireloom-inspect)
published=("${libraries[@]}" -p wireloom-cli)

# The reason is on a line of its own, even if a killed program left an unfinished line.
skip() { printf '\nskipped: %s\n' "$*"; return 77; }
# For the log and the screen.
say() { echo "$*"; echo "   $*" >&3; }
have() { command -v "$1" >/dev/null 2>&1; }
has_package() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q ' installed$'; }
# has_toolchain VERSION [PART…]: a toolchain, with folders below its lib/rustlib.
has_toolchain() {
    local root part
    root=$(rustup run "$1" rustc --print sysroot 2>/dev/null) || return 1
    shift
    for part in "$@"; do [ -e "$root/lib/rustlib/$part" ] || return 1; done
}
has_target() { [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ]; }
# The tool at exactly this version.
has_tool() { [ "$("$1" --version 2>/dev/null)" = "$1 $2" ]; }

# bounded SECONDS FILE COMMAND…: runs tests for at most SECONDS. A test that failed within that time fails the step;
# otherwise the step passes for what ran. FILE gets the output.
bounded() {
    local seconds=$1 file=$2 rc
    shift 2
    timeout "$seconds" "$@" 2>&1 | tee "$file"
    rc=${PIPESTATUS[0]}
    [ "$rc" = 124 ] || return "$rc"
    if grep -qE '^test .* FAILED$|^error: Undefined Behavior|ERROR: AddressSanitizer|WARNING: ThreadSanitizer' "$file"; then
        echo "stopped after $seconds s; a test had failed before"
        return 1
    fi
    say "stopped after $seconds s; the $(grep -c '^test .* ok$' "$file") tests until then passed"
}
