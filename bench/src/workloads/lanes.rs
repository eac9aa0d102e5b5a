//! Who takes part: every contestant that can read, and every one that can write.

use crate::contestant::{Reading, Writing};
use crate::corpus::{Corpus, End};
use crate::measure::{Kind, Lane};
use crate::rivals::{
    fastwebsockets, nago_wss, sockudo_ws, tokio_websockets, tungstenite, with_version, yawc,
};
use crate::wireloom;

/// The rivals that read `corpus`.
pub(crate) fn rival_readers(corpus: &Corpus, end: End) -> Vec<Lane> {
    macro_rules! lanes {
        ($($package:literal $suffix:literal $reader:ty),* $(,)?) => {
            vec![$(Lane::new(
                with_version($package) + $suffix,
                Kind::Rival,
                Reading::<$reader>::new(corpus, end),
            )),*]
        };
    }
    lanes![
        "tungstenite" "" tungstenite::Tungstenite,
        "fastwebsockets" "" fastwebsockets::Collector,
        "tokio-websockets" "" tokio_websockets::TokioWebsockets,
        "sockudo-ws" ", core" sockudo_ws::CoreReader<::sockudo_ws::protocol::Protocol>,
        "sockudo-ws" ", stream" sockudo_ws::StreamReader,
        "yawc" "" yawc::Yawc,
        "nago-wss" "" nago_wss::Nago,
    ]
}

/// The rivals that write `corpus`.
pub(crate) fn rival_writers(corpus: &Corpus, end: End) -> Vec<Lane> {
    macro_rules! lanes {
        ($($package:literal $suffix:literal $writer:ty),* $(,)?) => {
            vec![$(Lane::new(
                with_version($package) + $suffix,
                Kind::Rival,
                Writing::<$writer>::new(corpus, end),
            )),*]
        };
    }
    lanes![
        "tungstenite" "" tungstenite::Tungstenite,
        "fastwebsockets" "" fastwebsockets::FrameWriter,
        "tokio-websockets" "" tokio_websockets::TokioWebsockets,
        "sockudo-ws" ", core" sockudo_ws::CoreWriter<::sockudo_ws::protocol::Protocol>,
        "yawc" ", codec" yawc::CodecWriter,
        "yawc" ", stream" yawc::SocketWriter,
        "nago-wss" "" nago_wss::Nago,
    ]
}

/// Everyone who reads `corpus`, Wireloom with a read buffer of `BUFFER_LEN` bytes.
pub(crate) fn readers<const BUFFER_LEN: usize>(corpus: &Corpus, end: End) -> Vec<Lane> {
    let mut lanes = vec![
        Lane::new("wireloom", Kind::Headline, Reading::<wireloom::Assembling<BUFFER_LEN>>::new(corpus, end)),
        Lane::new(
            "wireloom, decoder",
            Kind::Ours,
            Reading::<wireloom::Decoding<BUFFER_LEN>>::new(corpus, end),
        ),
    ];
    lanes.extend(rival_readers(corpus, end));
    lanes
}

/// Everyone who reads `corpus` in reads of 64 KiB, with the connection that lends messages in pieces in front.
pub(crate) fn lending_readers(corpus: &Corpus, end: End) -> Vec<Lane> {
    let mut lanes = readers::<{ wireloom::LARGE }>(corpus, end);
    lanes[0] = Lane::new("wireloom, lending", Kind::Headline, Reading::<wireloom::Lending>::new(corpus, end));
    lanes
}

/// Everyone who writes `corpus`.
pub(crate) fn writers(corpus: &Corpus, end: End) -> Vec<Lane> {
    let mut lanes =
        vec![Lane::new("wireloom", Kind::Headline, Writing::<wireloom::Sending>::new(corpus, end))];
    lanes.extend(rival_writers(corpus, end));
    lanes
}
