//! Servers in other languages: built or installed beside this program, as far as the machine can.

use std::path::{Path, PathBuf};
use std::process::Command;

/// gws, built by Go.
pub(super) fn gws(_may_install: bool) -> Result<Command, String> {
    let program = beside("gws-echo")?;
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source("gws"));
    run(&mut build)?;
    Ok(Command::new(program))
}

/// bun, installed by npm: a hundred megabytes, so only where that is wanted.
pub(super) fn bun(may_install: bool) -> Result<Command, String> {
    let folder = beside("bun")?;
    let program = folder.join("node_modules/bun/bin/bun.exe");
    if !program.exists() {
        if !may_install {
            return Err("not installed; a run without --smoke does".into());
        }
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        std::fs::copy(source("bun").join("package.json"), folder.join("package.json"))
            .map_err(|error| error.to_string())?;
        run(Command::new("npm").args(["install", "--no-package-lock", "--no-audit"]).current_dir(&folder))?;
    }
    let mut command = Command::new(program);
    command.arg("run").arg(source("bun").join("echo.js"));
    Ok(command)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign").join(name)
}

/// Where what is built or installed for this program lies.
fn beside(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(program.with_file_name("bench-foreign").join(name))
}

/// The last thing that was said is the reason.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}", said.lines().rfind(|line| !line.is_empty()).unwrap_or("failed")))
}
