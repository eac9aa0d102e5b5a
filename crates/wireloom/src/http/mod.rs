//! HTTP requests, responses and bodies as values, and upgrades to WebSockets: the same over HTTP/1.1 and HTTP/2.

mod body;
#[cfg(feature = "server")]
mod origin_policy;
#[cfg(feature = "server")]
mod request;
#[cfg(feature = "server")]
mod response;
#[cfg(feature = "http2")]
mod send_body;
#[cfg(feature = "server")]
mod upgrade;

pub use body::{Body, BodySender};
#[cfg(feature = "tower")]
pub(crate) use body::{BodyFrame, Exclusive};
#[cfg(feature = "server")]
pub use origin_policy::OriginPolicy;
#[cfg(feature = "server")]
pub use request::Request;
#[cfg(feature = "server")]
pub(crate) use request::{Origin, RequestConfig};
#[cfg(feature = "server")]
pub(crate) use response::Afterwards;
#[cfg(feature = "server")]
pub use response::{IntoResponse, Response};
#[cfg(feature = "http2")]
pub(crate) use send_body::send_body;
#[cfg(all(feature = "server", feature = "http2"))]
pub use upgrade::TunnelUpgrade;
#[cfg(feature = "server")]
pub use upgrade::Upgrade;

#[cfg(feature = "server")]
pub(crate) use upgrade::{Carrier, Open, Running};

pub use crate::transport::TlsInfo;
pub use crate::version::Version;
