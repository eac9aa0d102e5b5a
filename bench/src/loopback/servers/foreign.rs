//! Servers in other languages. They are built or installed beside this program, if the machine has the tools.

use super::super::tls;
use super::{LARGE, Launch, SMALL, SMALL_BODY, large};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// gws, built by Go.
pub(super) fn gws(_may_install: bool) -> Result<Launch, String> {
    let program = beside("gws-echo")?;
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source("gws"));
    run(&mut build)?;
    Ok(Command::new(program).into())
}

/// A room by gorilla/websocket, built by Go.
pub(super) fn gorilla(_may_install: bool) -> Result<Launch, String> {
    let program = beside("gorilla-room")?;
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source("gorilla"));
    run(&mut build)?;
    Ok(Command::new(program).into())
}

/// A node by centrifuge, built by Go.
pub(super) fn centrifuge(_may_install: bool) -> Result<Launch, String> {
    let program = beside("centrifuge-node")?;
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source("centrifuge"));
    run(&mut build)?;
    Ok(Command::new(program).into())
}

/// The echo of bun.
pub(super) fn bun(may_install: bool) -> Result<Launch, String> {
    bun_runs("echo.js", may_install)
}

/// The room of bun.
pub(super) fn bun_publish(may_install: bool) -> Result<Launch, String> {
    bun_runs("publish.js", may_install)
}

/// The echo of bun, over TLS.
pub(super) fn bun_tls(may_install: bool) -> Result<Launch, String> {
    over_tls(bun(may_install)?)
}

/// The room of bun, over TLS.
pub(super) fn bun_publish_tls(may_install: bool) -> Result<Launch, String> {
    over_tls(bun_publish(may_install)?)
}

/// The room of gorilla/websocket, over TLS.
pub(super) fn gorilla_tls(may_install: bool) -> Result<Launch, String> {
    over_tls(gorilla(may_install)?)
}

/// With the name of the file that has the certificate and its key.
fn over_tls(mut launch: Launch) -> Result<Launch, String> {
    launch.command.env("TLS", tls::pem()?);
    Ok(launch)
}

/// The room of bun, compressed.
pub(super) fn bun_deflate(may_install: bool) -> Result<Launch, String> {
    let mut launch = bun_runs("publish.js", may_install)?;
    launch.command.env(DEFLATE, "1");
    Ok(launch)
}

/// The room of gorilla/websocket, compressed.
pub(super) fn gorilla_deflate(may_install: bool) -> Result<Launch, String> {
    let mut launch = gorilla(may_install)?;
    launch.command.env(DEFLATE, "1");
    Ok(launch)
}

/// Makes a room negotiate permessage-deflate.
const DEFLATE: &str = "DEFLATE";

/// socket.io on one process, with connection state recovery if `arguments` say so, or on several with its cluster
/// adapter.
pub(super) fn socket_io(arguments: &[&str], may_install: bool) -> Result<Launch, String> {
    node_runs("socket-io.mjs", arguments, may_install)
}

/// Faye on node.
pub(super) fn faye(may_install: bool) -> Result<Launch, String> {
    node_runs("faye.mjs", &[], may_install)
}

/// The version of a package that a manifest in `bench/foreign` names: one of npm, whose versions are exact there, or of Go.
fn version<'a>(manifest: &'a str, package: &str) -> &'a str {
    let starts = [format!("\"{package}\": \""), format!("{package} v")];
    let rest = starts.iter().find_map(|start| Some(manifest.split_once(start)?.1));
    rest.and_then(|rest| rest.split(['"', '\n']).next()).unwrap_or("?")
}

pub(super) fn gws_version() -> &'static str {
    version(include_str!("../../../foreign/gws/go.mod"), "lxzan/gws")
}

pub(super) fn gorilla_version() -> &'static str {
    version(include_str!("../../../foreign/gorilla/go.mod"), "gorilla/websocket")
}

pub(super) fn centrifuge_version() -> &'static str {
    version(include_str!("../../../foreign/centrifuge/go.mod"), "centrifugal/centrifuge")
}

pub(super) fn bun_version() -> &'static str {
    version(include_str!("../../../foreign/bun/package.json"), "bun")
}

pub(super) fn node_version(package: &str) -> &'static str {
    version(include_str!("../../../foreign/node/package.json"), package)
}

/// The folder with what npm installed for a manifest. It is installed if `may_install`, anew if the manifest has changed.
fn installed(name: &str, may_install: bool) -> Result<PathBuf, String> {
    let folder = beside(name)?;
    let manifest = fs::read(source(name).join("package.json")).map_err(|error| error.to_string())?;
    // Written last: an installation that broke off has none.
    let done = folder.join("installed.json");
    if fs::read(&done).is_ok_and(|it| it == manifest) {
        return Ok(folder);
    }
    if !may_install {
        return Err("not installed; a run without --smoke does".into());
    }
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    fs::write(folder.join("package.json"), &manifest).map_err(|error| error.to_string())?;
    run(Command::new("npm").args(["install", "--no-package-lock", "--no-audit"]).current_dir(&folder))?;
    fs::write(done, manifest).map_err(|error| error.to_string())?;
    Ok(folder)
}

/// A server from npm's registry. It is installed by npm if `may_install`.
fn node_runs(script: &str, arguments: &[&str], may_install: bool) -> Result<Launch, String> {
    let folder = installed("node", may_install)?;
    // Node searches for packages beside the script.
    let copy = folder.join(script);
    fs::copy(source("node").join(script), &copy).map_err(|error| error.to_string())?;
    let mut command = Command::new("node");
    command.arg(copy).args(arguments);
    Ok(command.into())
}

/// Its name with its version, if it is on the PATH.
pub(super) fn centrifugo_name() -> String {
    // "Centrifugo v6.3.1 (Go version: go1.24.4)"
    let output = Command::new("centrifugo").arg("version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('v'));
    version.map_or_else(|| "Centrifugo".to_owned(), |version| format!("Centrifugo {version}"))
}

/// Centrifugo 6, from the PATH.
pub(super) fn centrifugo(_may_install: bool) -> Result<Launch, String> {
    run(Command::new("centrifugo").arg("version"))?;
    let address = free_address()?;
    let mut command = bound("centrifugo");
    let kept = r#"[{"name":"kept","history_size":100,"history_ttl":"600s","force_recovery":true},
        {"name":"listed","presence":true}]"#;
    command.envs([
        ("CENTRIFUGO_HTTP_SERVER_ADDRESS", "127.0.0.1"),
        ("CENTRIFUGO_HTTP_SERVER_PORT", &address.port().to_string()),
        // Anyone may subscribe and publish.
        ("CENTRIFUGO_CLIENT_INSECURE", "true"),
        ("CENTRIFUGO_CLIENT_PING_INTERVAL", "2h"),
        ("CENTRIFUGO_CLIENT_PONG_TIMEOUT", "1h"),
        ("CENTRIFUGO_CLIENT_QUEUE_MAX_SIZE", "16777216"),
        ("CENTRIFUGO_CHANNEL_NAMESPACES", kept),
        ("CENTRIFUGO_LOG_LEVEL", "none"),
    ]);
    // It must not read a configuration from the working directory.
    command.current_dir(std::env::temp_dir()).stderr(Stdio::null());
    Ok(Launch { command, address: Some(address) })
}

/// A port that was free a moment ago.
pub(super) fn free_address() -> Result<SocketAddr, String> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    address.map_err(|error| error.to_string())
}

/// Starts a program that does not end when its input is closed. If `setpriv` is installed, it ends with this process.
pub(super) fn bound(program: &str) -> Command {
    let is_bound = run(Command::new("setpriv").args(["--pdeathsig", "KILL", "true"])).is_ok();
    let mut command = Command::new(if is_bound { "setpriv" } else { program });
    if is_bound {
        command.args(["--pdeathsig", "KILL", program]);
    }
    command
}

/// bun: installed by npm (100 MB) if `may_install`.
fn bun_runs(script: &str, may_install: bool) -> Result<Launch, String> {
    let mut command = Command::new(installed("bun", may_install)?.join("node_modules/bun/bin/bun.exe"));
    command.arg("run").arg(source("bun").join(script));
    Ok(command.into())
}

/// nghttpd of nghttp2, which serves files.
pub(super) fn nghttpd(_may_install: bool) -> Result<Launch, String> {
    run(Command::new("nghttpd").arg("--version"))?;
    let address = free_address()?;
    let mut command = bound("nghttpd");
    // Windows that never stall an upload; its defaults are those of the RFC.
    command.args(["--no-tls", "-w", "30", "-W", "30", "-a", "127.0.0.1", "-d"]).arg(files()?);
    command.arg(address.port().to_string()).stderr(Stdio::null());
    Ok(Launch { command, address: Some(address) })
}

/// A folder with the bodies that the other servers answer from memory.
///
/// # Errors
/// It cannot be written.
pub(crate) fn files() -> Result<PathBuf, String> {
    let folder = beside("files")?;
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(&name[1..]), bytes);
    let written = fs::create_dir_all(&folder)
        .and_then(|()| write(SMALL, SMALL_BODY.as_bytes()))
        .and_then(|()| write(LARGE, &large()));
    written.map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign").join(name)
}

/// The folder for programs that are built or installed for the benchmark.
pub(crate) fn beside(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(program.with_file_name("bench-foreign").join(name))
}

/// Runs a command. The error is the last line that it wrote to stderr.
pub(super) fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}", errors.lines().rfind(|line| !line.is_empty()).unwrap_or("failed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_foreign_rival_has_an_exact_version() {
        let npm = [bun_version(), node_version("socket.io"), node_version("faye")];
        for version in [gws_version(), gorilla_version(), centrifuge_version()].into_iter().chain(npm) {
            let is_exact =
                version.split('.').count() == 3 && version.split('.').all(|part| part.parse::<u32>().is_ok());
            assert!(is_exact, "{version}");
        }
    }
}
