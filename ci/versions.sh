# shellcheck shell=bash disable=SC2034 # other files use these
# Versions of the tools that ./test installs.

# For Miri and the sanitizers.
nightly=nightly-2026-05-20
cargo_deny=0.20.2
# Of packaging/pack.
cargo_deb=3.8.0
maturin_version=1.16.0
# Builds the book.
mdbook=0.5.4
# Writes the bill of materials in ci/release.
cyclonedx=0.5.9
# Used by ci/release once an earlier version is tagged.
semver_checks=0.51.0
h2spec=v2.2.1+incompatible
# The linter of the Go module.
staticcheck=v0.8.2
# For the tests of several nodes.
nats_server=v2.15.2

# The oldest Rust that the libraries promise, and the one of the instruction counts' baseline.
msrv=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
counts_rust=$(sed -n 's/^rustc //p' bench/counts/baseline.txt 2>/dev/null)
gungraun=$(sed -n 's/^gungraun = "=\(.*\)"$/\1/p' bench/counts/Cargo.toml 2>/dev/null)
