# shellcheck shell=bash
# Tools that are built from source, and the checks of dependencies that use them.

# Fills `tools` with what is missing.
missing_tools() {
    tools=()
    has_tool cargo-deny "$cargo_deny" || tools+=("cargo-deny@$cargo_deny")
    has_mdbook || tools+=("mdbook@$mdbook")
    if [ -n "$gungraun" ] && [ "$(uname -sm)" = "Linux x86_64" ]; then
        has_tool gungraun-runner "$gungraun" || tools+=("gungraun-runner@$gungraun")
    fi
}

# It prints its version as v0.5.4.
has_mdbook() { [ "$(mdbook --version 2>/dev/null)" = "mdbook v$mdbook" ]; }

step_tools() {
    missing_tools
    [ ${#tools[@]} -gt 0 ] || return 0
    [ "$consent" = yes ] || { skip "not installed: ${tools[*]} (./test --yes, or cargo install --locked ${tools[*]})"; return; }
    local tool rc=0
    # They run for seconds: unoptimized, they take less time to build and run.
    for tool in "${tools[@]}"; do
        local features=()
        # Without a server and a watcher of files.
        [[ $tool != mdbook@* ]] || features=(--no-default-features --features search)
        cargo install --locked --debug ${features[@]+"${features[@]}"} "$tool" || rc=77
    done
    [ $rc = 0 ] || skip "cargo could not install: ${tools[*]}"
}

step_deny() {
    have cargo-deny || { skip "cargo-deny is not installed: cargo install --locked cargo-deny@$cargo_deny"; return; }
    cargo deny --locked check bans licenses sources
}

# The book as it is published, and every link of it.
step_book() {
    has_mdbook || { skip "mdbook is not installed: cargo install --locked mdbook@$mdbook"; return; }
    have python3 || { skip "no python3: apt-get install python3"; return; }
    docs/build
}

step_advisories() {
    have cargo-deny || { skip "cargo-deny is not installed: cargo install --locked cargo-deny@$cargo_deny"; return; }
    local out
    out=$(cargo deny --locked check advisories 2>&1) && { echo "$out"; return 0; }
    echo "$out"
    case $out in
        *"failed to fetch advisory database"* | *"unable to fetch"* | *"failed to load advisory database"*)
            skip "the advisory database is out of reach: it is fetched from github.com" ;;
        *) return 1 ;;
    esac
}

step_counts() {
    [ -d bench/counts ] || { skip "no bench/counts"; return; }
    # The table is shown even where it passes.
    cargo run --locked -q -p wireloom-counts | tee >(sed 's/^/   /' >&3)
}
