//! W5: thousands of request streams over one connection, client and server in one process.

#![cfg_attr(not(rival_nghttp2), allow(unused_mut))] // Lanes are added where the rival is there.

use crate::allocation;
use crate::bench::{Bench, Figure};
use crate::clock;
use crate::exchange::{Exchange, Exchanging, Pair, Receiving};
use crate::measure::{Kind, Lane, Race};
use crate::rivals::{h2, with_version};
use crate::wireloom_http2::Connections;
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
    growth::<Connections>(bench, &published);
    memory::<Connections>(bench, "wireloom", &published);
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
            Lane::new("wireloom", Kind::Headline, $contestant::<Connections>::new($($argument),*)),
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
    let Some(outcome) = bench.outcomes.last() else { return Ok(()) };
    let median =
        |name: &str| outcome.timings.iter().find(|timing| timing.name.starts_with(name)).map(|it| it.median);
    if let (Some(ours), Some(h2)) = (median("wireloom"), median("h2")) {
        bench.figures.push(Figure {
            workload: "w5",
            title: format!("{title}: times as fast as h2"),
            value: h2 / ours,
            bar: bars.h2.map(|ratio| 1.0 / ratio),
            note: format!("{ours:.0} ns against {h2:.0} ns"),
        });
    }
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

/// How the cost of a stream grows with their number: 100 on one connection against ever more of them, the connection
/// already there. The least of a few runs counts, as the question is what the work costs.
fn growth<P: Pair>(bench: &mut Bench, exchange: &Arc<Exchange>) {
    let most = bench.scale(1_000_000, 1_000);
    for concurrent in [1, 100, 10_000, usize::MAX] {
        let counts = (2..).map(|power| 10_usize.pow(power)).take_while(|&streams| streams <= most);
        let costs: Vec<(usize, f64)> =
            counts.map(|streams| (streams, cost::<P>(exchange, streams, concurrent, most))).collect();
        let &[(_, first), .., (_, last)] = &*costs else { return };
        let list = costs.iter().map(|(streams, cost)| format!("{streams}: {cost:.0} ns"));
        bench.figures.push(Figure {
            workload: "w5",
            title: match concurrent {
                usize::MAX => "cost of a stream, 100 streams to the most, all at a time".into(),
                _ => format!("cost of a stream, 100 streams to the most, {concurrent} at a time"),
            },
            value: first / last,
            // Growth of at most 1.3.
            bar: Some(1.0 / 1.3),
            note: list.collect::<Vec<_>>().join(", "),
        });
    }
}

/// Nanoseconds a stream.
fn cost<P: Pair>(exchange: &Arc<Exchange>, streams: usize, concurrent: usize, most: usize) -> f64 {
    let rounds = (most / streams / 10).clamp(3, 200);
    let run = |_| {
        let mut pair = P::open(exchange);
        // What is allocated once is not a stream's.
        pair.run(1, 1);
        let start = clock::now();
        pair.run(streams, concurrent);
        (clock::now() - start).as_nanos() as f64 / streams as f64
    };
    (0..rounds).map(run).fold(f64::INFINITY, f64::min)
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
