//! W5: thousands of request streams over one connection, client and server in one process.

use crate::allocation;
use crate::baseline::Walking;
use crate::clock;
use crate::exchange::{Exchange, Exchanging, Pair, Receiving};
use crate::race::{Contestant, Race};
use crate::results::{Figure, Role, Target};
use crate::rivals::{h2, nghttp2, with_version};
use crate::runner::Runner;
use crate::wireloom_http2::Connections;
use std::sync::Arc;

pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let (published, web_like) = (Arc::new(Exchange::published()), Arc::new(Exchange::web_like()));
    let streams = runner.scale(5_000, 50);
    let target = |nghttp2, h2| vec![Target::named("nghttp2", nghttp2), Target::named("h2", h2)];
    let title = "the published exchange, one after another";
    exchange(runner, title, target(0.5, 0.22), &published, streams, 1)?;
    let title = "the published exchange, 100 at a time";
    exchange(runner, title, Vec::new(), &published, streams, 100)?;
    let title = "web-like, 100 at a time";
    exchange(runner, title, target(0.7, 0.25), &web_like, streams, 100)?;
    receive(runner, &published)?;
    bulk(runner)?;
    growth::<Connections<false>>(runner, &published);
    memory::<Connections<false>>(runner, "wireloom", &published);
    memory::<h2::Connections>(runner, &with_version("h2"), &published);
    memory::<nghttp2::session::Sessions>(runner, &nghttp2::with_version(), &published);
    Ok(())
}

/// A contestant for each library.
macro_rules! contestants {
    ($work:ident, $($argument:expr),*) => {
        vec![
            Contestant::new("wireloom-http2, core", Role::Wireloom, $work::<Connections<false>>::new($($argument),*)),
            Contestant::new(
                nghttp2::with_version() + ", core",
                Role::Rival,
                $work::<nghttp2::session::Sessions>::new($($argument),*),
            )
            .with_note("fields and DATA by reference (NO_COPY)"),
            Contestant::new(
                "wireloom-http2, core, over a pipe",
                Role::Variant,
                $work::<Connections<true>>::new($($argument),*),
            )
            .with_note("each byte is copied into the pipe and out of it, as for h2"),
            Contestant::new(
                with_version("h2") + ", polled without a runtime",
                Role::Rival,
                $work::<h2::Connections>::new($($argument),*),
            )
            .with_note("each byte is copied into a pipe and out of it: its transport is AsyncRead and AsyncWrite"),
        ]
    };
}

fn exchange(
    runner: &mut Runner,
    title: &str,
    targets: Vec<Target>,
    exchange: &Arc<Exchange>,
    streams: usize,
    concurrent: usize,
) -> Result<(), String> {
    let mut contestants = contestants!(Exchanging, exchange, streams, concurrent);
    contestants.push(walking(exchange, streams));
    runner.race(Race { workload: "w5", title: title.into(), targets, messages: streams, contestants })
}

/// A bare loop over the frames, which were built before.
fn walking(exchange: &Exchange, streams: usize) -> Contestant {
    let name = "a loop over the frames, which copies the fields";
    Contestant::new(name, Role::Baseline, Walking::new(exchange, streams))
}

/// DATA frames of 1 KiB, one after another on one stream.
fn receive(runner: &mut Runner, published: &Arc<Exchange>) -> Result<(), String> {
    let frames = runner.scale(900, 20);
    let mut contestants = contestants!(Receiving, published, frames, 1_024);
    let data = vec![vec![b'x'; 1_024].into(); frames];
    contestants.push(walking(&Exchange { data, ..Exchange::published() }, 1));
    let title = "receive DATA of 1 KiB".into();
    runner.race(Race {
        workload: "w5",
        title,
        targets: vec![Target::named("nghttp2", 0.6)],
        messages: frames,
        contestants,
    })
}

/// DATA frames of 16 KiB from end to end.
fn bulk(runner: &mut Runner) -> Result<(), String> {
    let frames = runner.scale(1_024, 8);
    let exchange = Arc::new(Exchange::bulk(frames));
    let mut contestants = contestants!(Exchanging, &exchange, 1, 1);
    contestants.push(walking(&exchange, 1));
    let title = "send and receive DATA of 16 KiB".into();
    runner.race(Race {
        workload: "w5",
        title,
        targets: vec![Target::named("nghttp2", 0.9)],
        messages: frames,
        contestants,
    })
}

/// How the cost of a stream grows with the number of streams on one open connection, from 100 upwards. The minimum of a
/// few runs counts, which excludes other load on the machine.
fn growth<P: Pair>(runner: &mut Runner, exchange: &Arc<Exchange>) {
    let most = runner.scale(1_000_000, 1_000);
    for concurrent in [1, 100, 10_000, usize::MAX] {
        let counts = (2..).map(|power| 10_usize.pow(power)).take_while(|&streams| streams <= most);
        let costs: Vec<(usize, f64)> =
            counts.map(|streams| (streams, cost::<P>(exchange, streams, concurrent, most))).collect();
        let &[(_, first), .., (_, last)] = &*costs else { return };
        let list = costs.iter().map(|(streams, cost)| format!("{streams}: {cost:.0} ns"));
        let title = match concurrent {
            usize::MAX => "cost of a stream, 100 streams in parts of the most, all at a time".into(),
            _ => format!("cost of a stream, 100 streams in parts of the most, {concurrent} at a time"),
        };
        let note = list.collect::<Vec<_>>().join(", ");
        // Growth of at most 1.3.
        runner.keep_figure(Figure::new("w5", title, first / last, Some(1.0 / 1.3), note));
    }
}

/// The cost of a stream, in nanoseconds.
fn cost<P: Pair>(exchange: &Arc<Exchange>, streams: usize, concurrent: usize, most: usize) -> f64 {
    let rounds = (most / streams / 10).clamp(3, 200);
    let run = |_| {
        let mut pair = P::open(exchange);
        // Allocates what a connection allocates once.
        pair.run(1, 1);
        let start = clock::now();
        pair.run(streams, concurrent);
        (clock::now() - start).as_nanos() as f64 / streams as f64
    };
    (0..rounds).map(run).fold(f64::INFINITY, f64::min)
}

/// The memory of an idle connection, and of each stream that waits for its answer, for both ends together.
fn memory<P: Pair>(runner: &mut Runner, name: &str, exchange: &Arc<Exchange>) {
    let streams = runner.scale(10_000, 100);
    let (mut pair, idle) = allocation::growth(|| P::open(exchange));
    let ((), open) = allocation::growth(|| pair.open_streams(streams));
    let mut figure = |title: &str, bytes: f64| {
        let title = format!("bytes {title}, both ends, {name}");
        let note = format!("counted by the allocator over {streams} open streams");
        runner.keep_figure(Figure::new("w5", title, bytes, None, note));
    };
    figure("of an idle connection", idle as f64);
    figure("of an open stream", open as f64 / streams as f64);
}
