# shellcheck shell=bash
# The program under test: WIRELOOM=path/to/wireloom chooses it; without that the command is built. Sourced before the folder changes.
wireloom=${WIRELOOM-}
if [ -z "$wireloom" ]; then
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    cargo build --quiet --locked --manifest-path "$root/Cargo.toml" -p wireloom-cli || exit 1
    wireloom=${CARGO_TARGET_DIR:-$root/target}/debug/wireloom
fi
wireloom=$(realpath "$wireloom") || exit 1
