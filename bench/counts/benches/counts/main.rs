//! Hot paths whose instructions Callgrind counts: in memory, each over inputs made from a fixed seed.
//!
//! The kernels are capped at AVX2, the widest that Valgrind knows. `README.md` of this package says how to read a change.

mod deflate;
mod handshake;
mod hpack;
mod http2;
mod socket;
mod websocket;

use deflate::deflate_group;
use gungraun::{Callgrind, LibraryBenchmarkConfig, main};
use handshake::handshake_group;
use hpack::hpack_group;
use http2::http2_group;
use socket::socket_group;
use websocket::websocket_group;
use wireloom_ws::mask::isa::{self, Isa};

/// Makes the input of a benchmark, with the kernels capped at AVX2. The set-up of every benchmark calls this.
pub(crate) fn capped<T>(make: impl FnOnce() -> T) -> T {
    isa::cap(Isa::Avx2);
    make()
}

main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no"]));
    library_benchmark_groups = websocket_group, deflate_group, handshake_group, socket_group, hpack_group, http2_group
);
