//! The workloads: one module each, with one function that passes its races to the runner. To add one, write the module
//! and add its line to [`ALL`].

mod contestants;
mod deflate;
#[cfg(target_os = "linux")]
mod fairness;
#[cfg(target_os = "linux")]
mod h2load;
mod hpack;
#[cfg(target_os = "linux")]
mod open_loop;
mod w1;
mod w2;
#[cfg(target_os = "linux")]
mod w3;
mod w4;
mod w5;
#[cfg(target_os = "linux")]
mod w6;
#[cfg(target_os = "linux")]
mod w7;
#[cfg(target_os = "linux")]
mod workers;

use crate::runner::Runner;

/// One workload.
pub(crate) struct Workload {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Runs its races.
    ///
    /// # Errors
    /// The contestant that failed, and how.
    pub(crate) run: fn(&mut Runner) -> Result<(), String>,
}

/// All of them, in the order in which they run.
pub(crate) const ALL: &[Workload] = &[
    Workload { name: "w1", about: "decode small text frames, masked and not", run: w1::run },
    Workload { name: "w2", about: "read and write masked frames of 1 KiB and 1 MiB", run: w2::run },
    #[cfg(target_os = "linux")]
    Workload { name: "w3", about: "consume a firehose of 5 KB binary events over loopback", run: w3::run },
    Workload { name: "w4", about: "receive one masked text message of 16 MiB, validated", run: w4::run },
    Workload {
        name: "w5",
        about: "exchange requests and responses over one HTTP/2 connection",
        run: w5::run,
    },
    #[cfg(target_os = "linux")]
    Workload { name: "w6", about: "echo over loopback, idle connections, handshakes", run: w6::run },
    #[cfg(target_os = "linux")]
    Workload { name: "w7", about: "fan-out over loopback, memory of subscribed connections", run: w7::run },
    #[cfg(target_os = "linux")]
    Workload { name: "fairness", about: "an honest client beside 200 hostile ones", run: fairness::run },
    #[cfg(target_os = "linux")]
    Workload { name: "workers", about: "one runtime against a listener for each core", run: workers::run },
    #[cfg(target_os = "linux")]
    Workload { name: "h2load", about: "HTTP/2 servers under h2load, over one connection", run: h2load::run },
    Workload {
        name: "hpack",
        about: "decode and encode HPACK field blocks, a field at a time",
        run: hpack::run,
    },
    Workload { name: "deflate", about: "permessage-deflate, 1 KiB of JSON a message", run: deflate::run },
];

/// The workload of this name.
pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    ALL.iter().find(|workload| workload.name == name)
}
