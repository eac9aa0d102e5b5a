# shellcheck shell=bash
# Steps that need only Rust.

step_fmt() {
    cargo fmt --version || { skip "rustfmt is not installed: rustup component add rustfmt"; return; }
    cargo fmt --all --check || return
    local outside
    for outside in fuzz mutants ruby/ext/wireloom; do
        [ -d $outside ] || continue
        cargo fmt --manifest-path $outside/Cargo.toml --check || return
        # Its lock file follows the dependencies of the workspace. The step fuzz, which notices too, often has no time.
        cargo metadata --locked --format-version 1 --manifest-path $outside/Cargo.toml >/dev/null || return
    done
}

step_clippy() {
    cargo clippy --version || { skip "clippy is not installed: rustup component add clippy"; return; }
    cargo clippy "${workspace[@]}" --all-targets -- -D warnings || return
    # Each feature of the tokio crate can be switched off.
    local features
    for features in "" client server client,server client,tls server,http2; do
        echo "features: $features"
        cargo clippy --locked -p wireloom --lib --no-default-features --features "$features" -- -D warnings || return
    done
}

test_workspace() { cargo test "${workspace[@]}" --lib --bins --tests "$@"; }

step_build() { test_workspace --no-run; }

# The command with the features that it is shipped with: it compiles without a warning, what they leave out, and that it works. Its parts lie
# where those of the other steps do, and are mostly the same; the program lies elsewhere, since other steps run the one with all features
# meanwhile.
step_shipped() {
    local tests=(configuration::a_collector_that_is_not_used_is_reported command::lines_go_out_and_messages_come_in
        command::serves_the_page_and_the_metrics command::makes_requests_over_http2)
    CARGO_BUILD_BUILD_DIR=$target cargo test --locked --workspace --target-dir "$target/shipped" --test shell -- \
        --exact "${tests[@]}" 2>&1 | tee "$logs/shipped.out"
    [ "${PIPESTATUS[0]}" = 0 ] || return
    ! grep -q '^warning' "$logs/shipped.out" || { echo "FAILED: warnings"; return 1; }
    # Another name would match no test.
    grep -q "^running ${#tests[@]} tests" "$logs/shipped.out" || { echo "FAILED: not ${#tests[@]} tests"; return 1; }
}

step_layers() { cargo test "${workspace[@]}" --test layers; }

step_unit() {
    # Slow tests mostly wait.
    RUST_TEST_THREADS=${RUST_TEST_THREADS-$(($(nproc) * 2))} test_workspace --no-fail-fast
}

# A hundred times as many seeds as in the step unit, others each time, and ten times as many of the crashes of a store and of the HTTP/2
# core alone. A failure prints its seed.
step_simulation() {
    local rc=0
    WIRELOOM_SEED=random WIRELOOM_ROUNDS=100 cargo test --locked -p wireloom-hub --test simulation --no-fail-fast || rc=1
    WIRELOOM_SEED=random WIRELOOM_ROUNDS=10 cargo test --locked -p wireloom-hub --lib acknowledged_publications_survive | tee "$logs/crashes.out" || rc=1
    # Another name would match no test.
    grep -q '^running [1-9]' "$logs/crashes.out" || { echo "FAILED: no test of crashes"; rc=1; }
    WIRELOOM_SEED=random WIRELOOM_ROUNDS=10 cargo test --locked -p wireloom-http2 --test simulation || rc=1
    return $rc
}

step_doc() { cargo test "${workspace[@]}" --doc --no-fail-fast; }

# Checks rustdoc, except of wireloom-capi, whose documentation is its header. An example makes cargo count the features that tests need, so
# that the dependencies are those that the step clippy has checked.
step_rustdoc() {
    local documented=(--exclude wireloom-capi --lib --bin wireloom-bench --bin wireloom-counts --example receive)
    RUSTDOCFLAGS="-D warnings" cargo doc "${workspace[@]}" --no-deps "${documented[@]}"
}

# The HTTP/2 core has no features.
step_nostd() { cargo test --locked -p wireloom-ws --no-default-features --lib --tests --no-fail-fast; }

# Built with the workspace: tiny inputs need no optimization, and a profile of its own would build the dependencies once more.
step_bench() {
    test_workspace --no-run && "$target/debug/wireloom-bench" --smoke
}

# fuzz_seconds is set by the option --fuzz-seconds.
step_fuzz() {
    [ -f fuzz/Cargo.toml ] || { skip "no fuzz/"; return; }
    have c++ || { skip "libFuzzer needs a C++ compiler: apt-get install build-essential"; return; }
    # These builds share no flags with the workspace's. cargo-fuzz sets this one as well.
    local build=(env RUSTFLAGS="--cfg fuzzing" cargo)
    "${build[@]}" check --locked --all-features --manifest-path fuzz/Cargo.toml --target-dir "$target/fuzz-check" || return
    # The comparisons with other implementations, from seeds.
    "${build[@]}" test --locked --features peers --manifest-path fuzz/Cargo.toml --target-dir "$target/fuzz-check" --tests || return
    has_toolchain "$nightly" || { skip "no $nightly: rustup toolchain install $nightly --profile minimal"; return; }
    have cargo-fuzz || { skip "no cargo-fuzz: cargo install cargo-fuzz"; return; }
    local seconds=${fuzz_seconds-60}
    [ "$is_full" = 0 ] || seconds=${fuzz_seconds-$fuzz_seconds_full}
    echo "each target for $seconds s; ./test fuzz --fuzz-seconds N runs them longer"
    NIGHTLY=$nightly fuzz/run "$seconds"
}

# The step clippy knows the oldest Rust, too, and refuses what the standard library did not have then.
step_msrv() {
    has_toolchain "$msrv" || { skip "Rust $msrv is not installed: rustup toolchain install $msrv --profile minimal"; return; }
    check_packages msrv "$msrv" "${libraries[@]}"
}

# The gem's package is a test of the step ruby; ci/release builds the packages as crates.io would.
step_package() { check_packages package "" "${published[@]}"; }

# check_packages FOLDER TOOLCHAIN -p CRATE…: packs crates and checks the packages alone, in a workspace of their own, with a toolchain
# or with the one in use.
check_packages() {
    local folder=$target/$1 cargo=(cargo) crate
    [ -z "$2" ] || cargo=(rustup run "$2" cargo)
    shift 2
    rm -rf "$folder/package" "$folder/alone"
    cargo package --locked --allow-dirty --no-verify "$@" --target-dir "$folder" || return
    mkdir -p "$folder/alone"
    # The times in a package never change: cargo would check what depends on a crate against the crate of the last run.
    find "$folder/package" -maxdepth 2 -name '*.crate' -exec tar -C "$folder/alone" -xmf {} \; || return
    (
        cd "$folder/alone" || exit
        printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n[patch.crates-io]\n' >Cargo.toml
        for crate in */; do printf '%s = { path = "%s" }\n' "${crate%-*}" "${crate%/}"; done >>Cargo.toml
        cp "$OLDPWD/Cargo.lock" .
        "${cargo[@]}" check --workspace --all-features --target-dir "$folder/check"
    )
}
