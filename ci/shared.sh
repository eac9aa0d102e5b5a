# shellcheck shell=bash
# Shared by the steps. `log` is the step's log, file descriptor 3 is the screen.

cores=(-p wireloom-ws -p wireloom-http2)
libraries=("${cores[@]}" -p wireloom -p wireloom-hub -p wireloom-inspect)
published=("${libraries[@]}" -p wireloom-cli)
# The packages and features of every build of the workspace: what steps share is built once. A single package would be built with fewer
# features of its dependencies, and all of them once more. With other features `wireloom` would be another program at the same path, while
# another step runs it.
workspace=(--locked --workspace --features wireloom-cli/opentelemetry)

# skip REASON: of the step, which returns this, or of a part, which goes on. The reason is on a line of its own, even if a killed program left
# an unfinished line.
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
has_tool() { [[ $("$1" --version 2>/dev/null) = "$1 "?(v)"$2" ]]; }

# bounded [--slow] SECONDS FILE COMMAND…: runs tests for at most SECONDS. What fails the step then: a test that failed within that
# time, tests under way while none had ended for the last minute, of which one may hang, unless tests are --slow, and that no test ended
# at all. Otherwise the step passes for what ran. FILE gets the output.
bounded() {
    local is_slow=0 seconds file rc passed unfinished verdict='^test .* [.][.][.] (ok|FAILED|ignored)'
    [ "$1" != --slow ] || { is_slow=1; shift; }
    seconds=$1 file=$2
    shift 2
    # FILE.ended is when the last test ended.
    : >"$file.ended"
    timeout "$seconds" "$@" 2>&1 | while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
        [[ ! $line =~ $verdict ]] || printf '%(%s)T\n' -1 >"$file.ended"
    done | tee "$file"
    rc=${PIPESTATUS[0]}
    [ "$rc" = 124 ] || return "$rc"
    if grep -qE '^test .* FAILED$|^error: Undefined Behavior|ERROR: AddressSanitizer|WARNING: ThreadSanitizer' "$file"; then
        echo "stopped after $seconds s; a test had failed before"
        return 1
    fi
    passed=$(grep -c '^test .* ok$' "$file")
    [ "$passed" -gt 0 ] || { echo "stopped after $seconds s; no test had ended"; return 1; }
    # With several threads libtest writes a line after a minute, and one at the end of a test; with one, a line that the end completes.
    unfinished=$(awk -v verdict="$verdict" '$0 ~ verdict { delete runs[$2]; next } /^test .*( \.\.\. | has been running for over)/ { runs[$2] = 1 }
        END { for (name in runs) print name }' "$file")
    if [ -n "$unfinished" ] && [ $is_slow = 0 ] && [ $(($(date +%s) - $(cat "$file.ended"))) -ge 60 ]; then
        printf 'FAILED: stopped after %s s; for a minute no test had ended, and these were running:\n%s\n' "$seconds" "$unfinished"
        return 1
    fi
    say "stopped after $seconds s; the $passed tests until then passed"
}
