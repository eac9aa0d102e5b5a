//! One runtime with a thread for each core, compared with a runtime and a listener for each core (SO_REUSEPORT): echo
//! and handshakes. Here no process has a core to itself: the kernel schedules servers and load generator on all cores.

use super::w6;
use crate::loopback::cores::Cores;
use crate::loopback::echo::Load;
use crate::loopback::servers;
use crate::runner::Runner;

/// All races. They have no target; they show which way to run the server is faster.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let cores = Cores::share();
    let running = servers::start(runner, &cores, servers::workers())?;
    let connections = runner.scale(64, 4);
    for depth in [1, 64] {
        let load = Load { payload_len: 32, connections, depth, tls: false };
        let title = format!("32 B, {connections} connections, depth {depth}");
        w6::echo(runner, "workers", &running, &title, load, Vec::new())?;
    }
    w6::handshakes(runner, "workers", &running, Vec::new())
}
