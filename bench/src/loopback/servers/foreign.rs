//! Servers in other languages: built or installed beside this program, as far as the machine can.

use super::{LARGE, Launch, SMALL, SMALL_BODY, large};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
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

/// The echo of bun.
pub(super) fn bun(may_install: bool) -> Result<Launch, String> {
    bun_runs("echo.js", may_install)
}

/// The room of bun.
pub(super) fn bun_publish(may_install: bool) -> Result<Launch, String> {
    bun_runs("publish.js", may_install)
}

/// bun, installed by npm: a hundred megabytes, so only where that is allowed.
fn bun_runs(script: &str, may_install: bool) -> Result<Launch, String> {
    let folder = beside("bun")?;
    let program = folder.join("node_modules/bun/bin/bun.exe");
    if !program.exists() {
        if !may_install {
            return Err("not installed; a run without --smoke does".into());
        }
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        fs::copy(source("bun").join("package.json"), folder.join("package.json"))
            .map_err(|error| error.to_string())?;
        run(Command::new("npm").args(["install", "--no-package-lock", "--no-audit"]).current_dir(&folder))?;
    }
    let mut command = Command::new(program);
    command.arg("run").arg(source("bun").join(script));
    Ok(command.into())
}

/// nghttpd of nghttp2, which serves files. It is given a free port, and ends with this program where `setpriv` is installed.
pub(super) fn nghttpd(_may_install: bool) -> Result<Launch, String> {
    run(Command::new("nghttpd").arg("--version"))?;
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    let address = address.map_err(|error| error.to_string())?;
    let bound = run(Command::new("setpriv").args(["--pdeathsig", "KILL", "true"])).is_ok();
    let mut command = Command::new(if bound { "setpriv" } else { "nghttpd" });
    if bound {
        command.args(["--pdeathsig", "KILL", "nghttpd"]);
    }
    // Windows that hold no upload back; its default is that of the RFC.
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

/// The folder of the programs that are built or installed for this one.
fn beside(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(program.with_file_name("bench-foreign").join(name))
}

/// The last line of its errors is the reason.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}", errors.lines().rfind(|line| !line.is_empty()).unwrap_or("failed")))
}
