//! HTTP requests and responses as values, and what makes a WebSocket of one: the same over HTTP/1.1 and HTTP/2. How they
//! travel is [`crate::server`]'s.

mod body;
mod origin_policy;
mod request;
mod response;
mod upgrade;

#[cfg(feature = "tower")]
pub(crate) use body::Piece;
pub use body::{Body, BodySender};
pub use origin_policy::OriginPolicy;
pub use request::Request;
pub(crate) use request::{Origin, RequestConfig};
pub use response::{IntoResponse, Response};
pub use upgrade::Upgrade;

pub(crate) use upgrade::{Carrier, Open, Running};

pub use crate::transport::TlsInfo;
pub use crate::version::Version;
