//! The first bytes of a server: whether it speaks HTTP/2 (RFC 9113 §3.4).

/// How much of a server's connection preface has arrived (RFC 9113 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerPreface {
    /// Too few bytes to decide.
    Partial(u8),
    /// The header of something other than SETTINGS: the server does not speak HTTP/2.
    NotHttp2,
    /// The header of SETTINGS.
    Begun,
    /// SETTINGS, complete and valid.
    Complete,
}

impl PeerPreface {
    /// The position of the type in a frame header (RFC 9113 §4.1), and the type of SETTINGS.
    const TYPE_AT: usize = 3;
    const SETTINGS: u8 = 4;

    /// Looks at the first bytes of the server.
    pub(super) fn handle_input(&mut self, input: &[u8]) {
        let Self::Partial(received) = *self else { return };
        *self = match input.get(Self::TYPE_AT - usize::from(received)) {
            Some(&Self::SETTINGS) => Self::Begun,
            Some(_) => Self::NotHttp2,
            None => Self::Partial(received + input.len() as u8),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_tells_whether_a_server_speaks_http2() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0];
        for (input, expected) in [
            (&settings[..], PeerPreface::Begun),
            (&settings[..3], PeerPreface::Partial(3)),
            (b"", PeerPreface::Partial(0)),
            (b"HTTP/1.1 400 Bad Request\r\n", PeerPreface::NotHttp2),
            (b"SSH-2.0", PeerPreface::NotHttp2),
        ] {
            for at in 0..=input.len() {
                let mut preface = PeerPreface::Partial(0);
                preface.handle_input(&input[..at]);
                preface.handle_input(&input[at..]);
                assert_eq!(preface, expected, "{input:?} split at {at}");
            }
        }
    }
}
