# shellcheck shell=bash
# Other processors and systems.

portable_targets=(aarch64-unknown-linux-gnu i686-unknown-linux-gnu s390x-unknown-linux-gnu)
portable_seconds=120
checked_targets=(x86_64-pc-windows-gnu aarch64-apple-darwin)
# shellcheck disable=SC2034 # setup installs them
portable_packages=(qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-i686-linux-gnu libc6-dev-i386-cross
    gcc-s390x-linux-gnu libc6-dev-s390x-cross gcc-mingw-w64-x86-64)

step_wasm() {
    has_target wasm32-unknown-unknown \
        || { skip "the target is not installed: rustup target add wasm32-unknown-unknown"; return; }
    cargo check --locked "${cores[@]}" --target wasm32-unknown-unknown \
        && cargo check --locked -p wireloom-ws --target wasm32-unknown-unknown --no-default-features
}

# The cores' tests under emulation, each random test for a few rounds; then the crates without TLS, whose C needs the
# system's own compiler, checked for Windows and macOS.
step_portable() {
    local ran=0 failed=0 triple machine name missing=()
    for triple in "${portable_targets[@]}"; do
        machine=${triple%%-*}
        # Of i686 the emulator and Debian's compiler have different names.
        if ! has_target "$triple"; then missing+=("rustup target add $triple"); continue; fi
        if ! have "qemu-${machine/i686/i386}" || ! have "$machine-linux-gnu-gcc"; then
            missing+=("apt-get install qemu-user gcc-$machine-linux-gnu"); continue
        fi
        name=${triple//-/_} name=${name^^} ran=$((ran + 1))
        echo "== $triple"
        # Emulation is slow: build with optimization, and limit the time.
        local test=(env "CARGO_TARGET_${name}_LINKER=$machine-linux-gnu-gcc"
            "CARGO_TARGET_${name}_RUNNER=qemu-${machine/i686/i386} -L /usr/$machine-linux-gnu"
            WIRELOOM_ROUNDS_MAX=3 CARGO_PROFILE_DEV_OPT_LEVEL=1
            cargo test --locked --target-dir "$target/portable" --target "$triple" "${cores[@]}" --lib --tests)
        "${test[@]}" --no-run && bounded "$portable_seconds" "$logs/portable-$machine.tests" "${test[@]}" --no-fail-fast || failed=1
    done
    for triple in "${checked_targets[@]}"; do
        if ! has_target "$triple"; then missing+=("rustup target add $triple"); continue; fi
        ran=$((ran + 1))
        echo "== $triple"
        cargo check --locked --target-dir "$target/portable" --target "$triple" "${cores[@]}" -p wireloom --no-default-features || failed=1
    done
    for name in ${missing[@]+"${missing[@]}"}; do skip "$name"; done
    [ $ran -gt 0 ] || { skip "no other platform is set up: ./test setup portable"; return; }
    return $failed
}
