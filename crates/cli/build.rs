//! Determines the output of `wireloom --version`: the commit, and the versions of the libraries that matter for
//! security reports. All of it is optional, so that a package without a repository or lock file builds too. Compresses the page.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WIRELOOM_COMMIT");
    let package = env!("CARGO_PKG_VERSION");
    let commit = commit();
    let short = match &commit {
        Some(commit) => format!("{package} ({commit})"),
        None => package.to_owned(),
    };
    let mut long = short.clone();
    if let Some(lock) = lock_file() {
        for name in ["rustls", "zlib-rs"] {
            if let Some(version) = locked_version(&lock, name) {
                long += &format!("\n{name} {version}");
            }
        }
    }
    println!("cargo::rustc-env=WIRELOOM_VERSION={short}");
    compress_page();
    // A value may not contain a line break.
    println!("cargo::rustc-env=WIRELOOM_VERSION_LONG={}", long.replace('\n', ", "));
}

/// The files of the page with the content coding gzip (RFC 1952), for `routes::assets`.
fn compress_page() {
    /// Window bits of zlib that ask for the format of gzip.
    const GZIP: i32 = 15 + 16;
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for name in ["page.html", "page.js", "page.css"] {
        let path = format!("src/page/{name}");
        println!("cargo::rerun-if-changed={path}");
        let plain = std::fs::read(&path).expect("the page is among the sources");
        let config =
            zlib_rs::DeflateConfig { level: 9, window_bits: GZIP, ..zlib_rs::DeflateConfig::default() };
        let mut buffer = vec![0; plain.len() + 1024];
        let (packed, code) = zlib_rs::compress_slice(&mut buffer, &plain, config);
        assert_eq!(code, zlib_rs::ReturnCode::Ok, "{path}");
        std::fs::write(out.join(format!("{name}.gz")), packed).expect("cargo's directory can be written");
    }
}

/// From the environment, from what `cargo package` recorded, or from the repository this package lies in.
fn commit() -> Option<String> {
    const LEN: usize = 12;
    let given = std::env::var("WIRELOOM_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(packaged_commit).or_else(repository_commit)?;
    Some(commit.chars().take(LEN).collect())
}

fn packaged_commit() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = info.split_once("\"sha1\"")?;
    rest.split('"').nth(1).map(str::to_owned)
}

fn repository_commit() -> Option<String> {
    // Only this project's repository, not another one that contains the unpacked sources.
    let root = Path::new("../..");
    if !root.join(".git").exists() || !root.join("crates/cli").exists() {
        return None;
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let head = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    if Path::new(&head).exists() {
        println!("cargo::rerun-if-changed={head}");
    }
    git(&["rev-parse", "HEAD"])
}

fn lock_file() -> Option<String> {
    ["Cargo.lock", "../../Cargo.lock"].iter().find_map(|path| {
        let lock = std::fs::read_to_string(path).ok()?;
        println!("cargo::rerun-if-changed={path}");
        Some(lock)
    })
}

/// The version of a package, if the lock file contains the package exactly once.
fn locked_version<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let entry = format!("name = \"{name}\"\nversion = \"");
    let (_, rest) = lock.split_once(&entry)?;
    rest.split('"').next()
}
