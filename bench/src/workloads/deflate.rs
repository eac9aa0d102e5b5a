//! permessage-deflate (RFC 7692): 1 KiB of JSON a message at level 6, with and without context takeover, compressed by a
//! server and decompressed by a client. All contestants use zlib-rs.

use crate::baseline;
use crate::contestant::{Reading, Writer, Writing};
use crate::corpus::{Content, Corpus, End};
use crate::decode_check::{Expected, Takeover};
use crate::race::{Contestant, Race};
use crate::results::{Role, Target};
use crate::rivals::{sockudo_ws, with_version, yawc};
use crate::runner::Runner;
use crate::wire::Outbox;
use crate::wireloom;

/// The level of all contestants: zlib's default.
const LEVEL: u32 = 6;

/// The baseline.
const CODEC: &str = "zlib-rs alone, by flate2, memory level 8";

/// Compression and decompression, with and without context takeover.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let corpus = Corpus::new(Content::Json, 1024, runner.scale(200, 10), End::Client);
    let messages = corpus.messages.len();
    for (takeover, name) in [(Takeover::Yes, "with"), (Takeover::No, "without")] {
        let mut contestants = compressing(&corpus, takeover);
        contestants.push(Contestant::new(
            CODEC,
            Role::Baseline,
            baseline::Deflating::new(&corpus, takeover, LEVEL),
        ));
        let title = format!("compress 1 KiB of JSON, {name} context takeover");
        runner.race(Race {
            workload: "deflate",
            title,
            targets: vec![Target::fastest_rival(1.0)],
            messages,
            contestants,
        })?;
        let compressed = corpus.compressed(takeover, LEVEL);
        let mut contestants = match takeover {
            Takeover::Yes => decompressing::<true>(&compressed),
            Takeover::No => decompressing::<false>(&compressed),
        };
        contestants.push(Contestant::new(
            CODEC,
            Role::Baseline,
            baseline::Inflating::new(&corpus, takeover, LEVEL),
        ));
        let title = format!("decompress 1 KiB of JSON, {name} context takeover");
        runner.race(Race {
            workload: "deflate",
            title,
            targets: vec![Target::fastest_rival(1.0)],
            messages,
            contestants,
        })?;
    }
    Ok(())
}

fn compressing(corpus: &Corpus, takeover: Takeover) -> Vec<Contestant> {
    fn contestant<W: Writer + 'static>(
        name: String,
        kind: Role,
        corpus: &Corpus,
        takeover: Takeover,
        open: impl FnOnce(Outbox) -> W,
    ) -> Contestant {
        let expected = Expected { masked: false, compressed: Some(takeover) };
        let outbox = Outbox::default();
        Contestant::new(name, kind, Writing::compressing(open(outbox.clone()), outbox, corpus, expected))
    }
    vec![
        contestant("wireloom-ws, core".into(), Role::Wireloom, corpus, takeover, |outbox| {
            wireloom::Sending::deflating(outbox, End::Server, takeover, LEVEL)
        }),
        contestant(with_version("sockudo-ws") + ", core", Role::Rival, corpus, takeover, |outbox| {
            sockudo_ws::CoreWriter::deflating(outbox, End::Server, takeover, LEVEL)
        }),
        contestant(with_version("yawc"), Role::Rival, corpus, takeover, |outbox| {
            yawc::SocketWriter::deflating(outbox, End::Server, takeover, LEVEL)
        }),
    ]
}

fn decompressing<const TAKEOVER: bool>(corpus: &Corpus) -> Vec<Contestant> {
    vec![
        Contestant::new(
            "wireloom-ws, core",
            Role::Wireloom,
            Reading::<wireloom::Inflating<TAKEOVER>>::new(corpus, End::Client),
        ),
        Contestant::new(
            with_version("sockudo-ws") + ", core",
            Role::Rival,
            Reading::<sockudo_ws::Inflating<TAKEOVER>>::new(corpus, End::Client),
        ),
        Contestant::new(
            with_version("yawc"),
            Role::Rival,
            Reading::<yawc::Inflating<TAKEOVER>>::new(corpus, End::Client),
        ),
    ]
}
