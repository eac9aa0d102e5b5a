//! W5: thousands of request streams over one connection, client and server in one process.

#![cfg_attr(not(rival_nghttp2), allow(unused_mut))] // Lanes are added where the rival is there.

use crate::allocation;
use crate::bench::{Bench, Figure};
use crate::exchange::{Exchange, Exchanging, Pair};
use crate::measure::{Kind, Lane, Race};
use crate::rivals::{h2, with_version};
use std::sync::Arc;

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let (published, web_like) = (Arc::new(Exchange::published()), Arc::new(Exchange::web_like()));
    let streams = bench.scale(5_000, 50);
    race(bench, "the published exchange, one after another", &published, streams, 1)?;
    race(bench, "the published exchange, 100 at a time", &published, streams, 100)?;
    race(bench, "web-like, 100 at a time", &web_like, streams, 100)?;
    memory::<h2::Connections>(bench, &with_version("h2"), &published);
    #[cfg(rival_nghttp2)]
    {
        use crate::rivals::nghttp2;
        memory::<nghttp2::session::Sessions>(bench, &nghttp2::with_version(), &published);
    }
    Ok(())
}

/// What a connection holds while nothing happens, and what each stream adds that waits for its answer; both ends.
fn memory<P: Pair>(bench: &mut Bench, name: &str, exchange: &Arc<Exchange>) {
    let streams = bench.scale(10_000, 100);
    let (mut pair, idle) = allocation::growth(|| P::open(exchange));
    let ((), open) = allocation::growth(|| pair.open_streams(streams));
    let mut figure = |title: &str, bytes: f64| {
        bench.figures.push(Figure {
            workload: "w5",
            title: format!("bytes {title}, both ends, {name}"),
            value: bytes,
            bar: None,
            note: format!("counted by the allocator over {streams} open streams"),
        });
    };
    figure("of an idle connection", idle as f64);
    figure("of an open stream", open as f64 / streams as f64);
}

fn race(
    bench: &mut Bench,
    title: &str,
    exchange: &Arc<Exchange>,
    streams: usize,
    concurrent: usize,
) -> Result<(), String> {
    let mut lanes = vec![Lane::new(
        with_version("h2"),
        Kind::Rival,
        Exchanging::<h2::Connections>::new(exchange, streams, concurrent),
    )];
    #[cfg(rival_nghttp2)]
    lanes.push(Lane::new(
        crate::rivals::nghttp2::with_version(),
        Kind::Rival,
        Exchanging::<crate::rivals::nghttp2::session::Sessions>::new(exchange, streams, concurrent),
    ));
    bench.race(Race { workload: "w5", title: title.into(), bar: None, messages: streams, lanes })
}
