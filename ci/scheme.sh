# shellcheck shell=bash
# The step scheme: the egg, built by chicken-install as a user builds it, and its tests.

step_scheme() {
    [ "$(uname -s)" = Linux ] || { skip "libwireloom.so is linked on Linux only"; return; }
    have chicken-install && have csc || { skip "no CHICKEN 5: apt-get install chicken-bin libchicken-dev"; return; }
    local root=$target/scheme/root build=$target/scheme/build eggs=$target/scheme/eggs vectors=$PWD/testing/vectors
    rm -rf "$build" && mkdir -p "$root" "$build" "$eggs"
    crates/capi/install --prefix "$root" --profile dev || return
    cp -r scheme/. "$build" || return
    (
        # The compiler and the loader find libwireloom here instead of in /usr/local.
        export C_INCLUDE_PATH=$root/include LIBRARY_PATH=$root/lib LD_LIBRARY_PATH=$root/lib
        CHICKEN_REPOSITORY_PATH=$eggs:$(chicken-install -repository)
        export CHICKEN_REPOSITORY_PATH
        export CHICKEN_INSTALL_REPOSITORY=$eggs CHICKEN_INSTALL_PREFIX=$root CHICKEN_EGG_CACHE=$target/scheme/cache
        cd "$build" && chicken-install || exit
        for program in tests/run tests/vectors examples/echo-server; do csc -O2 -d1 "$program.scm" || exit; done
        # The second run has a nursery of 64 KiB, which is collected all the time.
        timeout 300 tests/run && timeout 300 tests/run -:s64k && timeout 300 tests/vectors "$vectors"
    )
}
