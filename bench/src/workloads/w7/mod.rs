//! W7: fan-out over loopback. One connection publishes, every subscriber receives.

mod clusters;
mod fanout;
mod members;
mod memory;

use crate::loopback::cores::Cores;
use crate::loopback::process::files_max;
use crate::loopback::protocol::Protocol;
use crate::loopback::servers::Running;
use crate::results::Role;
use crate::runner::Runner;

/// All races.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let cores = Cores::take();
    let most = files_max().saturating_sub(1_000).max(1);
    let subscribers = runner.scale(1_000, 4).min(most);
    fanout::of_one_channel(runner, &cores, subscribers)?;
    fanout::paced(runner, &cores, subscribers)?;
    fanout::growth(runner, &cores, most)?;
    let (channels, members) = (runner.scale(10_000, 16), runner.scale(10, 2));
    fanout::of_many_channels(runner, &cores, subscribers, channels, members)?;
    let channels = runner.scale(100_000, 32);
    fanout::of_many_channels(runner, &cores, subscribers, channels, 1)?;
    fanout::over_tls(runner, &cores, subscribers)?;
    fanout::compressed(runner, &cores, subscribers)?;
    clusters::run(runner, &cores, subscribers)?;
    memory::run(runner, &cores, subscribers)?;
    memory::of_channels(runner, &cores, subscribers, channels)?;
    let members = runner.scale(10_000, 8).min(most);
    members::joining(runner, &cores, members)?;
    members::recovery(runner, &cores, members)
}

/// A server and one of the protocols that it speaks.
struct Entrant<'a> {
    name: String,
    role: Role,
    protocol: Protocol,
    running: &'a Running,
}

/// Every protocol of every server. The ratio of Wireloom's first one is the result.
fn entrants(running: &[Running]) -> Vec<Entrant<'_>> {
    let each = running.iter().flat_map(|running| {
        running.server.protocols.iter().enumerate().map(move |(index, &protocol)| Entrant {
            name: format!("{}{}", running.server.name, protocol.suffix()),
            role: match running.server.role {
                Role::Wireloom if index > 0 => Role::Variant,
                role => role,
            },
            protocol,
            running,
        })
    });
    each.collect()
}
