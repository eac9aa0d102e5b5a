//! The committed header is the one that cbindgen writes.

use std::path::Path;

#[test]
fn the_header_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("header.toml")).expect("header.toml");
    // With its modules.
    let builder = cbindgen::Builder::new().with_config(config).with_src(folder.join("src/lib.rs"));
    let mut header = Vec::new();
    builder.generate().expect("bindings").write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    let path = folder.join("include/wireloom.h");
    if std::env::var_os("WIRELOOM_RENEW_HEADER").is_some() {
        std::fs::write(&path, &header).expect("include/wireloom.h");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == header,
        "include/wireloom.h differs from the declarations: WIRELOOM_RENEW_HEADER=1 cargo test -p wireloom-capi --test header"
    );
}
