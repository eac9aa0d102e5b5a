//! permessage-deflate (RFC 7692): 1 KiB of JSON a message at level 6, with and without context takeover, compressed by a
//! server and decompressed by a client. zlib-rs is under everyone.

use crate::bench::Bench;
use crate::contestant::{Reading, Writer, Writing};
use crate::corpus::{Content, Corpus, End};
use crate::measure::{Kind, Lane, Race};
use crate::rivals::{sockudo_ws, with_version, yawc};
use crate::wire::Outbox;
use crate::wireloom;
use crate::written::{Expected, Takeover};

/// The level at which everyone compresses: what zlib takes by default.
const LEVEL: u32 = 6;

/// Each way, with and without context takeover.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let corpus = Corpus::new(Content::Json, 1024, bench.scale(200, 10), End::Client);
    let messages = corpus.messages.len();
    for (takeover, name) in [(Takeover::Yes, "with"), (Takeover::No, "without")] {
        let lanes = compressing(&corpus, takeover);
        let title = format!("compress 1 KiB of JSON, {name} context takeover");
        bench.race(Race { workload: "deflate", title, bar: Some(1.0), messages, lanes })?;
        let compressed = corpus.compressed(takeover, LEVEL);
        let lanes = match takeover {
            Takeover::Yes => decompressing::<true>(&compressed),
            Takeover::No => decompressing::<false>(&compressed),
        };
        let title = format!("decompress 1 KiB of JSON, {name} context takeover");
        bench.race(Race { workload: "deflate", title, bar: Some(1.0), messages, lanes })?;
    }
    Ok(())
}

fn compressing(corpus: &Corpus, takeover: Takeover) -> Vec<Lane> {
    fn lane<W: Writer + 'static>(
        name: String,
        kind: Kind,
        corpus: &Corpus,
        takeover: Takeover,
        open: impl FnOnce(Outbox) -> W,
    ) -> Lane {
        let expected = Expected { masked: false, compressed: Some(takeover) };
        let outbox = Outbox::default();
        Lane::new(name, kind, Writing::compressing(open(outbox.clone()), outbox, corpus, expected))
    }
    vec![
        lane("wireloom".into(), Kind::Headline, corpus, takeover, |outbox| {
            wireloom::Sending::deflating(outbox, End::Server, takeover, LEVEL)
        }),
        lane(with_version("sockudo-ws") + ", core", Kind::Rival, corpus, takeover, |outbox| {
            sockudo_ws::CoreWriter::deflating(outbox, End::Server, takeover, LEVEL)
        }),
        lane(with_version("yawc"), Kind::Rival, corpus, takeover, |outbox| {
            yawc::SocketWriter::deflating(outbox, End::Server, takeover, LEVEL)
        }),
    ]
}

fn decompressing<const TAKEOVER: bool>(corpus: &Corpus) -> Vec<Lane> {
    vec![
        Lane::new(
            "wireloom",
            Kind::Headline,
            Reading::<wireloom::Inflating<TAKEOVER>>::new(corpus, End::Client),
        ),
        Lane::new(
            with_version("sockudo-ws") + ", core",
            Kind::Rival,
            Reading::<sockudo_ws::Inflating<TAKEOVER>>::new(corpus, End::Client),
        ),
        Lane::new(
            with_version("yawc"),
            Kind::Rival,
            Reading::<yawc::Inflating<TAKEOVER>>::new(corpus, End::Client),
        ),
    ]
}
