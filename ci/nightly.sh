# shellcheck shell=bash
# Steps that need the nightly toolchain.

miri_seconds=180 miri_core_seconds=240
# The time limit of the sanitizer tests, which are about ten times slower than usual.
sanitizer_seconds=1800

need_nightly() {
    has_toolchain "$nightly" "$@" && return
    skip "no $nightly: rustup toolchain install $nightly --profile minimal --component miri --component rust-src"
}

step_miri() {
    need_nightly src || return
    # Miri's own files are kept between runs.
    cargo "+$nightly" miri --version || { skip "no miri: rustup component add miri --toolchain $nightly"; return; }
    # With AVX2, so that its kernels are checked too; Miri has no AVX-512.
    local flags=${RUSTFLAGS-}
    [ "$(uname -m)" != x86_64 ] || flags+=" -C target-feature=+avx2"
    local miri=(env RUSTFLAGS="$flags" cargo "+$nightly" miri test --locked -p wireloom-ws --no-default-features --lib --target-dir "$target/miri")
    "${miri[@]}" --no-run || return
    # The kernels, and the UTF-8 validation that uses them, are the only `unsafe` code.
    bounded --slow "$miri_seconds" "$logs/miri.tests" "${miri[@]}" -- mask:: utf8:: || return
    # The safe code on them: frames, messages, text, reads into the end of a message, the state of DEFLATE. The skipped tests take
    # longer than all others.
    bounded --slow "$miri_core_seconds" "$logs/miri-core.tests" "${miri[@]}" -- \
        decoder:: frame:: close:: owned:: assembly:: reader:: deflate::decompressor:: deflate::window:: \
        --skip reserves_the_length --skip mixes_messages_and_chunks_of_compressed --skip in_chunks_of_bounded_length \
        --skip has_no_more_after_an_error --skip offers_no_slot_for_chunks
}

# The tests of the WebSocket core and the tokio crate, each random test for a few rounds, and those of the gem.
step_sanitizers() {
    [ "$(uname -sm)" = "Linux x86_64" ] || { skip "set up for x86-64 Linux only"; return; }
    need_nightly src || return
    local rc=0
    # The thread sanitizer must see the standard library as well, or its locks look like races.
    sanitizer address || rc=1
    sanitizer thread -Zbuild-std || rc=1
    echo "== address, the gem"
    ruby/test/asan "$nightly" "$target/sanitizers/ruby"
    case $? in
        0 | 77) ;;
        *) rc=1 ;;
    esac
    return $rc
}

# sanitizer NAME OPTION…
sanitizer() {
    local name=$1 test
    shift
    test=(cargo "+$nightly" test --locked "$@" -p wireloom-ws -p wireloom --lib --tests --target x86_64-unknown-linux-gnu
        --target-dir "$target/sanitizers/$name")
    export RUSTFLAGS="-Zsanitizer=$name" WIRELOOM_ROUNDS_MAX=3
    [ "$name" != thread ] || export TSAN_OPTIONS="suppressions=$PWD/ci/tsan.supp"
    # The sanitizer keeps freed memory (by default 256 MiB) to detect uses after free, which tests that measure memory would count.
    export ASAN_OPTIONS=quarantine_size_mb=32 LSAN_OPTIONS="suppressions=$PWD/ci/lsan.supp print_suppressions=0"
    echo "== $name"
    "${test[@]}" --no-run && bounded "$sanitizer_seconds" "$logs/sanitizer-$name.tests" "${test[@]}" --no-fail-fast
    local rc=$?
    unset RUSTFLAGS WIRELOOM_ROUNDS_MAX TSAN_OPTIONS ASAN_OPTIONS LSAN_OPTIONS
    return $rc
}
