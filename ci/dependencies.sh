# shellcheck shell=bash
# Tools that are built from source, and the steps that use them.

# missing_tools: those that the steps of this run would build.
missing_tools() {
    ! wants deny advisories || has_tool cargo-deny "$cargo_deny" || echo "cargo-deny@$cargo_deny"
    ! wants book || has_tool mdbook "$mdbook" || echo "mdbook@$mdbook"
    ! wants counts || [ -z "$gungraun" ] || [ "$(uname -sm)" != "Linux x86_64" ] || has_tool gungraun-runner "$gungraun" || echo "gungraun-runner@$gungraun"
}

# need_tool NAME VERSION [OPTION…]: builds a tool where it is missing. They run for seconds: unoptimized, they take less time to build and run.
need_tool() {
    local tool=$1@$2
    ! has_tool "$1" "$2" || return 0
    [ "$consent" = yes ] || { skip "$1 is not installed: ./test --yes, or cargo install --locked $tool"; return; }
    shift 2
    cargo install --locked --debug "$@" "$tool" || skip "cargo could not install $tool"
}

step_deny() {
    need_tool cargo-deny "$cargo_deny" || return
    cargo deny --locked check bans licenses sources
}

# The book as it is published, and every link of it.
step_book() {
    have python3 || { skip "no python3: apt-get install python3"; return; }
    # Without a server and a watcher of files.
    need_tool mdbook "$mdbook" --no-default-features --features search || return
    docs/build
}

step_advisories() {
    need_tool cargo-deny "$cargo_deny" || return
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
    [ "$(uname -sm)" != "Linux x86_64" ] || need_tool gungraun-runner "$gungraun" || return
    # The table is shown even where it passes.
    cargo run --locked -q -p wireloom-counts | tee >(sed 's/^/   /' >&3)
}
