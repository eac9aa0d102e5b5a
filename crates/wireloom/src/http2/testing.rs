//! One end of a connection, for the tests of this folder.

use wireloom_http2::field::Field;
use wireloom_http2::{Config, Role};
use wireloom_testing::http2::GET;

use super::incoming::IncomingRequests;
use super::{Driver, Incoming, Shared};
use crate::sync::Arc;
use crate::transport::Io;

pub(super) fn driver(io: Io, role: Role) -> Driver {
    Driver::new(io, role, Config::new(role)).unwrap()
}

/// A server without a transport.
pub(super) fn server() -> Arc<Shared> {
    Shared::new(Role::Server, Config::new(Role::Server)).unwrap()
}

/// The fields of a request.
pub(super) fn get<'f>() -> impl Iterator<Item = Field<'f>> + Clone {
    GET.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()))
}

/// Handles bytes from the peer, and returns the requests among them.
pub(super) fn receive(shared: &Arc<Shared>, bytes: &[u8]) -> Vec<Incoming> {
    let mut incoming = Vec::new();
    let mut requests = IncomingRequests::new(shared, &mut incoming);
    let mut state = shared.lock();
    let handled = requests.handle_input(&mut state, bytes, None);
    state.core.take_decoded_len();
    drop(state);
    assert_eq!(handled, Ok(bytes.len()));
    incoming
}
