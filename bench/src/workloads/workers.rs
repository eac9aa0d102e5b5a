//! One runtime with a thread for each core against a runtime and a listener for each (SO_REUSEPORT): echo and handshakes. Nobody
//! has a core to itself here: servers and generator share all cores, as the kernel puts them.

use super::w6;
use crate::bench::Bench;
use crate::loopback::cores::Cores;
use crate::loopback::echo::Load;
use crate::loopback::servers;

/// All heats. There is no bar: the figures say how the server is meant to be run.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let cores = Cores::share();
    let running = servers::start(bench, &cores, servers::workers())?;
    let connections = bench.scale(64, 4);
    for depth in [1, 64] {
        let load = Load { payload_len: 32, connections, depth };
        let title = format!("32 B, {connections} connections, depth {depth}");
        w6::echo(bench, "workers", &running, &title, load, |_| {})?;
    }
    w6::handshakes(bench, "workers", &running, |_| {})
}
