# shellcheck shell=bash
# Tests against other implementations, and the Ruby gem.

step_h2spec() {
    [ -x conformance/h2spec/run ] || { skip "no conformance/h2spec/run"; return; }
    have h2spec || { skip "h2spec is not installed: go install github.com/summerwind/h2spec/cmd/h2spec@$h2spec"; return; }
    # The step `build` builds the command, but the example only as a test.
    test_workspace --no-run && cargo build "${workspace[@]}" --quiet --example h2spec_server || return
    WIRELOOM_BUILT=$target/debug conformance/h2spec/run
}

step_interop() {
    [ -x conformance/interop/run ] || { skip "no conformance/interop/run"; return; }
    test_workspace --no-run || return
    WIRELOOM=$target/debug/wireloom conformance/interop/run
}

step_page() {
    have node && have npm || { skip "Node and npm are not installed: apt-get install nodejs npm"; return; }
    [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || { skip "Node $(node --version) is older than 20: https://nodejs.org"; return; }
    page/build --check || return
    [ -x page/browser ] || return 0
    test_workspace --no-run || return
    # In parallel, because their tests mostly wait. A run of all has in Firefox what a browser does its own way: WebSockets, TLS, keys, files
    # and the rules of what may load.
    local browser pids=() rc=0 options=() own=("echoes text" "closes with" "refusals in words" "is cancelled" "subprotocols" "dropped file"
        "compresses" "of each size" "long messages" "copies messages" "refuses a URL" "is silent" "the loss of" "by keyboard" "from elsewhere" wss)
    for browser in chromium firefox; do
        [ "$is_full$browser" != 1firefox ] || options=("${own[@]/#/--only=}")
        page/browser "$target/debug/wireloom" "$browser" ${options[@]+"${options[@]}"} >"$logs/page-$browser.out" 2>&1 &
        pids+=($!)
    done
    for browser in chromium firefox; do
        wait "${pids[0]}"
        # Without a browser the types, unit tests and the comparison have passed.
        case $? in 0 | 77) ;; *) rc=1 ;; esac
        pids=("${pids[@]:1}")
        cat "$logs/page-$browser.out"
    done
    return $rc
}

step_memory() {
    test_workspace --no-run || return
    WIRELOOM=$target/debug/wireloom conformance/memory/run &&
        WIRELOOM=$target/debug/wireloom conformance/memory/run 64
}

step_proxies() {
    test_workspace --no-run || return
    WIRELOOM=$target/debug/wireloom conformance/proxies/run
}

step_autobahn() {
    [ -x conformance/autobahn/run ] || { skip "no conformance/autobahn/run"; return; }
    test_workspace --no-run && cargo build "${workspace[@]}" --quiet --example autobahn_client || return
    WIRELOOM_BUILT=$target/debug conformance/autobahn/run server client
}

step_autobahn_all() {
    [ -x conformance/autobahn/run ] || { skip "no conformance/autobahn/run"; return; }
    conformance/autobahn/run --all
}

step_soak() {
    [ -x conformance/soak/run ] || { skip "no conformance/soak/run"; return; }
    conformance/soak/run
}

step_hub() {
    [ -x conformance/hub/run ] || { skip "no conformance/hub/run"; return; }
    test_workspace --no-run || return
    WIRELOOM=$target/debug/wireloom conformance/hub/run
}

step_ruby() {
    [ -x ruby/test/run ] || { skip "no ruby/test/run"; return; }
    local target=$target/ruby
    CARGO_TARGET_DIR=$target ruby/test/run || return
    # With the RUBY of the Makefile and the profile of test/run, or everything is built anew.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 RUBY=$(ruby -e 'print RbConfig.ruby') cargo clippy --locked --release --manifest-path ruby/ext/wireloom/Cargo.toml --target-dir "$target" -- -D warnings
}

step_newest() {
    [ -x ruby/test/newest ] || { skip "no ruby/test/newest"; return; }
    ruby/test/newest "$target/newest"
}
