//! W5: thousands of request streams over one connection, client and server in one process.

#![cfg_attr(not(rival_nghttp2), allow(unused_mut))] // Lanes are added where the rival is there.

use crate::allocation;
use crate::bench::{Bench, Figure};
use crate::exchange::{Exchange, Exchanging, Pair, Receiving};
use crate::measure::{Kind, Lane, Race};
use crate::rivals::{h2, with_version};
use std::sync::Arc;

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let (published, web_like) = (Arc::new(Exchange::published()), Arc::new(Exchange::web_like()));
    let streams = bench.scale(5_000, 50);
    let title = "the published exchange, one after another, a stream";
    exchange(bench, title, Bars { nghttp2: Some(0.5), h2: Some(0.22) }, &published, streams, 1)?;
    let title = "the published exchange, 100 at a time, a stream";
    exchange(bench, title, Bars { nghttp2: None, h2: None }, &published, streams, 100)?;
    let title = "web-like, 100 at a time, a stream";
    exchange(bench, title, Bars { nghttp2: Some(0.7), h2: Some(0.25) }, &web_like, streams, 100)?;
    receive(bench, &published)?;
    bulk(bench)?;
    memory::<h2::Connections>(bench, &with_version("h2"), &published);
    #[cfg(rival_nghttp2)]
    {
        use crate::rivals::nghttp2;
        memory::<nghttp2::session::Sessions>(bench, &nghttp2::with_version(), &published);
    }
    Ok(())
}

/// The highest ratios to each rival's time that the project allows itself.
struct Bars {
    nghttp2: Option<f64>,
    h2: Option<f64>,
}

/// A lane for every library that is there.
macro_rules! lanes {
    ($contestant:ident, $($argument:expr),*) => {{
        let mut lanes = vec![
            Lane::new(with_version("h2"), Kind::Rival, $contestant::<h2::Connections>::new($($argument),*)),
        ];
        #[cfg(rival_nghttp2)]
        lanes.push(Lane::new(
            crate::rivals::nghttp2::with_version(),
            Kind::Rival,
            $contestant::<crate::rivals::nghttp2::session::Sessions>::new($($argument),*),
        ));
        lanes
    }};
}

fn exchange(
    bench: &mut Bench,
    title: &str,
    bars: Bars,
    exchange: &Arc<Exchange>,
    streams: usize,
    concurrent: usize,
) -> Result<(), String> {
    let lanes = lanes!(Exchanging, exchange, streams, concurrent);
    // nghttp2 is the fastest rival where it is there.
    let bar = if cfg!(rival_nghttp2) { bars.nghttp2 } else { bars.h2 };
    bench.race(Race { workload: "w5", title: title.into(), bar, messages: streams, lanes })?;
    Ok(())
}

/// DATA frames of 1 KiB, one after another on one stream.
fn receive(bench: &mut Bench, published: &Arc<Exchange>) -> Result<(), String> {
    let frames = bench.scale(900, 20);
    let lanes = lanes!(Receiving, published, frames, 1_024);
    let title = "receive DATA of 1 KiB, a frame".into();
    bench.race(Race { workload: "w5", title, bar: Some(0.6), messages: frames, lanes })
}

/// DATA frames of 16 KiB from end to end.
fn bulk(bench: &mut Bench) -> Result<(), String> {
    let frames = bench.scale(1_024, 8);
    let lanes = lanes!(Exchanging, &Arc::new(Exchange::bulk(frames)), 1, 1);
    let title = "send and receive DATA of 16 KiB, a frame".into();
    // 0.9 of nghttp2's GB/s.
    bench.race(Race { workload: "w5", title, bar: Some(1.0 / 0.9), messages: frames, lanes })
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
