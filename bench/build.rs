//! Looks for nghttp2, which is a rival when it is installed: `pkg-config` says so, and `rival_nghttp2` is set.

use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(rival_nghttp2)");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    let Ok(output) = Command::new("pkg-config").args(["--libs", "libnghttp2"]).output() else {
        return;
    };
    if !output.status.success() {
        return;
    }
    for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        if let Some(path) = word.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={path}");
        }
    }
    println!("cargo::rustc-link-lib=dylib=nghttp2");
    println!("cargo::rustc-cfg=rival_nghttp2");
}
