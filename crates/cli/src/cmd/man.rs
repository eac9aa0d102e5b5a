//! `wireloom man` and `wireloom completions`: what packagers install beside the command.

use std::io::{self, Write as _};

use clap::CommandFactory as _;

use crate::args::{self, Args};
use crate::exit::Exit;

pub(crate) fn man(args: &args::Man) -> Exit {
    let mut command = Args::command();
    command.build();
    if let Some(dir) = &args.dir {
        let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir));
        return done(
            written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()))),
        );
    }
    let page = match &args.subcommand {
        None => Some(&command),
        Some(name) => command.find_subcommand(name),
    };
    let Some(page) = page else {
        eprintln!("wireloom: there is no such subcommand; `wireloom --help` names them");
        return Exit::Usage;
    };
    let mut out = Vec::new();
    let rendered = clap_mangen::Man::new(page.clone()).render(&mut out);
    done(rendered.and_then(|()| io::stdout().lock().write_all(&out)))
}

pub(crate) fn completions(args: &args::Completions) -> Exit {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "wireloom", &mut out);
    done(io::stdout().lock().write_all(&out))
}

fn done(written: io::Result<()>) -> Exit {
    match written {
        Ok(()) => Exit::Done,
        // `wireloom man | head` is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(error) => {
            eprintln!("wireloom: {error}");
            Exit::NotBegun
        }
    }
}
