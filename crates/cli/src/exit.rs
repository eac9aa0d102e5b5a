//! What the command says to the shell when it ends. Scripts rely on these numbers.

/// The exit codes. 2 is clap's, for arguments that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All went well: the connection was closed with 1000, 1001 or without a code.
    Done = 0,
    /// It could not begin: the address is taken, the host cannot be reached, the handshake failed.
    NotBegun = 1,
    /// The arguments make no sense.
    Usage = 2,
    /// The peer closed with another code.
    Closed = 3,
    /// What was expected did not come.
    Unexpected = 4,
    /// The connection was cut, the peer broke the protocol, or the output cannot be written.
    Cut = 5,
}
