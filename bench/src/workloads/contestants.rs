//! The contestants that can read, and those that can write.

use crate::contestant::{Reading, Writing};
use crate::corpus::{Corpus, End};
use crate::race::Contestant;
use crate::results::Role;
use crate::rivals::{
    fastwebsockets, nago_wss, sockudo_ws, tokio_websockets, tungstenite, with_version, yawc,
};
use crate::wire::READ_BUFFER_LEN;
use crate::{wireloom, wireloom_socket};

/// The rivals that read `corpus`.
pub(crate) fn rival_readers(corpus: &Corpus, end: End) -> Vec<Contestant> {
    macro_rules! contestants {
        ($($package:literal $suffix:literal $reader:ty),* $(,)?) => {
            vec![$(Contestant::new(
                with_version($package) + $suffix,
                Role::Rival,
                Reading::<$reader>::new(corpus, end),
            )),*]
        };
    }
    contestants![
        "tungstenite" ", blocking stream, owned" tungstenite::Tungstenite<{ tungstenite::DEFAULT_BUFFER_LEN }>,
        "tungstenite" ", blocking stream, owned, buffer of 16 KiB" tungstenite::Tungstenite<READ_BUFFER_LEN>,
        "fastwebsockets" ", stream, owned" fastwebsockets::Collector,
        "tokio-websockets" ", stream, owned" tokio_websockets::TokioWebsockets,
        "sockudo-ws" ", core, owned" sockudo_ws::CoreReader<::sockudo_ws::protocol::Protocol>,
        "sockudo-ws" ", stream, owned" sockudo_ws::StreamReader,
        "yawc" ", stream, owned" yawc::Yawc,
        "nago-wss" ", stream, owned" nago_wss::Nago,
    ]
}

/// The rivals that write `corpus`.
pub(crate) fn rival_writers(corpus: &Corpus, end: End) -> Vec<Contestant> {
    macro_rules! contestants {
        ($($package:literal $suffix:literal $writer:ty),* $(,)?) => {
            vec![$(Contestant::new(
                with_version($package) + $suffix,
                Role::Rival,
                Writing::<$writer>::new(corpus, end),
            )),*]
        };
    }
    contestants![
        "tungstenite" ", blocking stream" tungstenite::Tungstenite<{ tungstenite::DEFAULT_BUFFER_LEN }>,
        "fastwebsockets" ", stream" fastwebsockets::FrameWriter,
        "tokio-websockets" ", stream" tokio_websockets::TokioWebsockets,
        "sockudo-ws" ", core" sockudo_ws::CoreWriter<::sockudo_ws::protocol::Protocol>,
        "yawc" ", codec" yawc::CodecWriter,
        "yawc" ", stream" yawc::SocketWriter,
        "nago-wss" ", stream" nago_wss::Nago,
    ]
}

/// Wireloom's readers with borrowed messages and a read buffer of `BUFFER_LEN` bytes, and the rivals.
pub(crate) fn borrowing_readers<const BUFFER_LEN: usize>(corpus: &Corpus, end: End) -> Vec<Contestant> {
    let mut contestants = vec![
        Contestant::new(
            "wireloom-ws, core, borrowed",
            Role::Wireloom,
            Reading::<wireloom::Assembling<BUFFER_LEN>>::new(corpus, end),
        ),
        Contestant::new(
            "wireloom::WebSocket, stream, borrowed",
            Role::Variant,
            Reading::<wireloom_socket::Borrowing>::new(corpus, end),
        ),
    ];
    contestants.extend(rival_readers(corpus, end));
    contestants
}

/// Wireloom's readers with owned messages, and the rivals.
pub(crate) fn keeping_readers<const BUFFER_LEN: usize>(corpus: &Corpus, end: End) -> Vec<Contestant> {
    let mut contestants = vec![
        Contestant::new(
            "wireloom::WebSocket, stream, owned",
            Role::Wireloom,
            Reading::<wireloom_socket::Keeping>::new(corpus, end),
        ),
        Contestant::new(
            "wireloom-ws, core, owned",
            Role::Variant,
            Reading::<wireloom::Keeping<BUFFER_LEN>>::new(corpus, end),
        ),
    ];
    contestants.extend(rival_readers(corpus, end));
    contestants
}

/// The decoder alone, which checks headers and masks but assembles nothing.
pub(crate) fn decoder<const BUFFER_LEN: usize>(corpus: &Corpus, end: End) -> Contestant {
    Contestant::new(
        "wireloom-ws, decoder, borrowed",
        Role::Variant,
        Reading::<wireloom::Decoding<BUFFER_LEN>>::new(corpus, end),
    )
}

/// The connection that delivers chunks of messages in reads of 64 KiB, and the rivals.
pub(crate) fn chunking_readers(corpus: &Corpus, end: End) -> Vec<Contestant> {
    let mut contestants = vec![
        Contestant::new(
            "wireloom-ws, core, borrowed chunks",
            Role::Wireloom,
            Reading::<wireloom::Chunking>::new(corpus, end),
        ),
        decoder::<{ wireloom::LARGE }>(corpus, end),
    ];
    contestants.extend(rival_readers(corpus, end));
    contestants
}

/// All writers of `corpus`.
pub(crate) fn writers(corpus: &Corpus, end: End) -> Vec<Contestant> {
    let mut contestants = vec![
        Contestant::new("wireloom-ws, core", Role::Wireloom, Writing::<wireloom::Sending>::new(corpus, end)),
        Contestant::new(
            "wireloom::WebSocket, stream",
            Role::Variant,
            Writing::<wireloom_socket::SocketWriter>::new(corpus, end),
        ),
    ];
    contestants.extend(rival_writers(corpus, end));
    contestants
}
