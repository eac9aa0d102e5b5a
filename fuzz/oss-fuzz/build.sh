#!/usr/bin/env bash
# Builds the fuzz targets as OSS-Fuzz asks for: programs, and a ZIP file of seeds for each, in $OUT. In its image there is nothing to set;
# elsewhere `OUT=FOLDER fuzz/oss-fuzz/build.sh [TARGET…]` needs cargo-fuzz, python3, and the toolchain that NIGHTLY names.
set -euo pipefail
: "${OUT:?OUT names the folder for the programs}"
project=${SRC:+$SRC/wireloom}
[ -n "$project" ] && [ -d "$project/fuzz" ] || project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$project/fuzz"
mkdir -p "$OUT"
# The image has one toolchain, which is a nightly.
cargo=(cargo)
[ -n "${FUZZING_ENGINE-}" ] || cargo=(cargo "+${NIGHTLY:-nightly}")

targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    list=$("${cargo[@]}" fuzz list)
    mapfile -t targets <<<"${list:?no list of targets}"
fi
triple=x86_64-unknown-linux-gnu
for target in "${targets[@]}"; do
    features=$(sed -n "/^name = \"$target\"$/,/^$/s/^required-features = \[\"\(.*\)\"\]$/\1/p" Cargo.toml)
    # Debug assertions find what the release would pass over.
    "${cargo[@]}" fuzz build --release --debug-assertions --target "$triple" --features "$features" "$target"
    cp "${CARGO_TARGET_DIR:-target}/$triple/release/$target" "$OUT/"
    if [ -d "seeds/$target" ]; then
        # Without paths: OSS-Fuzz unpacks it into the corpus.
        (cd "seeds/$target" && python3 -c 'import sys, zipfile, os
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
    for name in sorted(os.listdir(".")): archive.write(name)' "$OUT/${target}_seed_corpus.zip")
    fi
done
