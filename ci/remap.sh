# shellcheck shell=bash
# Builds that do not depend on where they are made: the folders of the sources, of cargo and of the build have fixed names in the binary,
# in what rustc compiles and in what the C compiler does. Sourced with `root` set to the folder of the sources, and `target` to that of the
# build.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
: "${root:?}" "${target:?}"
# The last that matches wins.
RUSTFLAGS="${RUSTFLAGS-} --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$root=/wireloom --remap-path-prefix=$target=/target"
CFLAGS="${CFLAGS-} -ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$root=/wireloom -ffile-prefix-map=$target=/target"
# Of the archives that build scripts make.
ZERO_AR_DATE=1
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
# Incremental builds depend on what was built before.
CARGO_INCREMENTAL=0
export RUSTFLAGS CFLAGS ZERO_AR_DATE SOURCE_DATE_EPOCH CARGO_INCREMENTAL
