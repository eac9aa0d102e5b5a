//! Exit codes. Scripts rely on these numbers; the help and the manual pages document them.

/// How the command ends. 2 is also what clap uses for invalid arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success: closed with 1000, 1001 or without a code; or a response below 400.
    Success = 0,
    /// No connection: the address is in use, the host cannot be reached, the handshake failed or timed out.
    NoConnection = 1,
    /// The arguments are invalid, or the input cannot be sent.
    Usage = 2,
    /// The peer closed with another code, or answered with a status of 400 or more.
    Refused = 3,
    /// `--expect` or `--count` was not met.
    Unmet = 4,
    /// The connection broke, the peer violated the protocol or a limit, or the output cannot be written.
    Broken = 5,
    /// The response did not arrive in time.
    TimedOut = 6,
    /// TLS failed: the certificate is not trusted, or there is no protocol in common.
    Tls = 7,
}
