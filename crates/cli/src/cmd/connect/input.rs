//! The units of input: messages, and commands that are typed instead of them.

use std::io;

use wireloom::CloseCode;

use super::output::decode_hex;

/// A unit of input.
pub(super) enum Input {
    Message(Vec<u8>),
    /// A line typed on a terminal that begins with a slash.
    Command(Command),
    /// Ctrl-C while a line is being edited.
    Interrupted,
    /// The input cannot be read, or is not in its format.
    Failed(io::Error),
}

/// An instruction instead of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Ping(Vec<u8>),
    Close(CloseCode, String),
    Binary(Vec<u8>),
    /// Not a command, and why.
    Invalid(&'static str),
}

/// Parses a line typed on a terminal.
pub(super) fn parse_line(line: String) -> Input {
    let Some(command) = line.strip_prefix('/') else { return Input::Message(line.into()) };
    let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
    Input::Command(match name {
        _ if command.starts_with('/') => return Input::Message(command.into()),
        // RFC 6455 §5.5.
        "ping" if rest.len() > 125 => Command::Invalid("a ping has at most 125 bytes"),
        "ping" => Command::Ping(rest.into()),
        "close" => {
            let (code, reason) = rest.split_once(' ').unwrap_or((rest, ""));
            match if code.is_empty() { Ok(1000) } else { code.parse() } {
                _ if reason.len() > 123 => Command::Invalid("a reason has at most 123 bytes"),
                Ok(code) if CloseCode::new(code).is_sendable() => {
                    Command::Close(CloseCode::new(code), reason.into())
                }
                Ok(_) => Command::Invalid("this close code may not be sent (RFC 6455 §7.4)"),
                Err(_) => Command::Invalid("/close CODE REASON: the code is a number, such as 1000"),
            }
        }
        "binary" => {
            decode_hex(rest).map_or(Command::Invalid("/binary HEX: two digits per byte"), Command::Binary)
        }
        _ => Command::Invalid(
            "commands are /ping, /close and /binary; //TEXT sends a text that begins with a slash",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_commands() {
        let command = |line: &str| match parse_line(line.into()) {
            Input::Command(command) => command,
            _ => panic!("{line} is no command"),
        };
        assert_eq!(command("/ping"), Command::Ping(Vec::new()));
        assert_eq!(command("/ping a b"), Command::Ping(b"a b".to_vec()));
        assert_eq!(command("/close"), Command::Close(CloseCode::NORMAL, String::new()));
        assert_eq!(command("/close 4000 see you"), Command::Close(CloseCode::new(4000), "see you".into()));
        assert_eq!(command("/binary 00 ff"), Command::Binary(vec![0, 255]));
        for wrong in ["/", "/pong", "/close x", "/close 1005", "/close 999", "/binary 0"] {
            assert!(matches!(command(wrong), Command::Invalid(_)), "{wrong}");
        }
        assert!(matches!(parse_line("//a".into()), Input::Message(message) if message == b"/a"));
        assert!(matches!(parse_line("a".into()), Input::Message(message) if message == b"a"));
    }
}
