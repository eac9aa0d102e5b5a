//! Runs a server under all kinds of clients at once for the number of seconds in the argument (default 5). Its memory must
//! not grow, and it must close every descriptor.

#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod server;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: what a process holds is read from /proc");
}

#[cfg(target_os = "linux")]
fn main() {
    // `cargo test NAME` passes its filter to every test program.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let seconds = match arguments.iter().find_map(|word| word.parse::<u64>().ok()) {
        Some(seconds) => seconds.max(3),
        None if arguments.iter().all(|word| "soak".contains(&**word)) => 5,
        None => return,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(soak::run(std::time::Duration::from_secs(seconds)));
}

#[cfg(target_os = "linux")]
mod soak {
    use std::time::Duration;

    use tokio::task::JoinSet;
    use tokio::time::Instant;
    use wireloom_testing::Rng;

    use super::client::{KINDS, act};
    use super::server::Serving;

    /// Concurrent clients.
    const CLIENTS: u64 = 32;

    /// Growth of memory that is allowed between the thirds of a run in addition to a fifth, in bytes: memory that the allocator keeps.
    const GROWTH_MAX: u64 = 16 << 20;

    pub(super) async fn run(time: Duration) {
        let seed = std::env::var("WIRELOOM_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(chosen_seed);
        println!("soak of {} s, WIRELOOM_SEED={seed}", time.as_secs());
        let serving = Serving::start().await;
        let descriptors = serving.descriptors();
        let begin = Instant::now();
        let end = begin + time;
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let addresses = serving.addresses.clone();
            clients.spawn(async move {
                let mut rng = Rng::with_seed(seed.wrapping_add(number));
                let mut counts = [0u64; KINDS.len()];
                while Instant::now() < end {
                    counts[act(&mut rng, &addresses).await] += 1;
                }
                counts
            });
        }
        // The maximum of each third. The first one fills pools and is not compared.
        let mut highest = [0; 3];
        let mut counts = [0u64; KINDS.len()];
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    let third = (begin.elapsed().as_secs_f64() * 3.0 / time.as_secs_f64()) as usize;
                    let highest = &mut highest[third.min(2)];
                    *highest = serving.resident().max(*highest);
                }
                done = clients.join_next() => match done {
                    Some(done) => {
                        let done = done.expect("every client is served");
                        counts.iter_mut().zip(done).for_each(|(count, done)| *count += done);
                    }
                    None => break,
                },
            }
        }
        for (kind, count) in KINDS.iter().zip(counts) {
            println!("{count:8} {kind}");
        }
        let [first, second, last] = highest.map(|bytes| bytes >> 10);
        println!("at most {first}, {second}, {last} KiB in the thirds of the run");
        assert!(highest[2] <= highest[1] + highest[1] / 5 + GROWTH_MAX, "memory grows");

        let released = async {
            // The connection of this request is open.
            while serving.metric("connections_open").await > 1 || serving.descriptors() > descriptors {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let released = tokio::time::timeout(Duration::from_secs(40), released).await;
        assert!(released.is_ok(), "{} descriptors, {descriptors} at first", serving.descriptors());
        assert_eq!(serving.metric("websockets_open").await, 0);
        assert_eq!(serving.metric("channels_open").await, 0);
        println!("{} KiB in the end", serving.resident() >> 10);
        serving.end().await;
        println!("ok");
    }

    /// A different seed for each run.
    fn chosen_seed() -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    }
}
