//! The book's page of all options, which a test keeps as the arguments are.

use std::fmt::Write as _;

use clap::{Arg, CommandFactory as _};

use super::Args;

const INTRODUCTION: &str = "\
# The command: all options

What `wireloom help COMMAND` prints, for searching. Sizes are in bytes, or with K, M, G (`64K`); times in seconds, or with ms, s, m, h (`500ms`).
[The command](start/command.md) explains its use, with the exit codes.
";

/// The page.
fn reference() -> String {
    let mut command = Args::command();
    command.build();
    let mut page = INTRODUCTION.to_owned();
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        add(&mut page, subcommand, "##");
    }
    page
}

fn add(page: &mut String, command: &clap::Command, level: &str) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // Writing to a string does not fail.
    let _ = write!(page, "\n{level} `{name}`\n\n{about}.\n");
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| {
            !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
        })
        .collect();
    if !arguments.is_empty() {
        page.push_str("\n| option | default | |\n|---|---|---|\n");
    }
    for argument in arguments {
        let _ =
            writeln!(page, "| {} | {} | {} |", spelling(argument), defaults(argument), about_of(argument));
    }
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        add(page, subcommand, &format!("{level}#"));
    }
}

/// All names, with the value.
fn spelling(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let value: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let value = match argument.get_action().takes_values() {
        true => value.join(" "),
        false => String::new(),
    };
    let mut flags = Vec::new();
    if let Some(short) = argument.get_short() {
        flags.push(format!("-{short}"));
    }
    for long in argument.get_long_and_visible_aliases().unwrap_or_default() {
        flags.push(format!("--{long}"));
    }
    if flags.is_empty() {
        return format!("`{value}`");
    }
    let last = flags.len() - 1;
    if !value.is_empty() {
        flags[last] += &format!(" {value}");
    }
    flags.iter().map(|flag| format!("`{flag}`")).collect::<Vec<_>>().join(", ")
}

fn defaults(argument: &Arg) -> String {
    let values: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    match values.is_empty() || !argument.get_action().takes_values() {
        true => String::new(),
        false => format!("`{}`", values.join(" ")),
    }
}

/// The help, with the values to choose from.
fn about_of(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut about =
        help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "\\<");
    let values = argument.get_possible_values();
    let shown: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if argument.get_action().takes_values() && !shown.is_empty() {
        about += &format!(": {}", shown.join(", ").replace('|', "\\|"));
    }
    about
}

#[test]
fn the_page_of_options_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/command-reference.md");
    if std::env::var_os("WIRELOOM_RENEW_REFERENCE").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap();
    assert!(
        page == reference(),
        "WIRELOOM_RENEW_REFERENCE=1 cargo test -p wireloom-cli --bin wireloom reference writes it again"
    );
}
