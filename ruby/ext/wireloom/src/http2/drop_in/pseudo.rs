//! Which pseudo-fields a message needs (RFC 9113 §8.3, RFC 8441 §4).

use magnus::typed_data::Obj;
use magnus::{Error, RArray, RString, Ruby};

use super::connection::Connection;
use super::frame::{bytes, converted};
use super::names::sym;
use super::send::connection_error;
use super::settings;

#[derive(Default)]
struct Seen {
    method: u32,
    scheme: u32,
    authority: u32,
    path: u32,
    status: u32,
    protocol: u32,
    other: u32,
    host: u32,
    is_connect: bool,
    path_empty: bool,
}

/// Checks the pseudo-fields of a response, or of a request.
pub(crate) fn verify(ruby: &Ruby, this: Obj<Connection>, list: RArray, response: bool) -> Result<(), Error> {
    let mut seen = Seen::default();
    for at in 0..list.len() {
        let pair = list.entry::<RArray>(at as isize)?;
        let (name, content) = (pair.entry::<RString>(0)?, pair.entry::<RString>(1)?);
        // SAFETY: no Ruby code runs while the slices are compared.
        let (name, content) = unsafe { (bytes(name), bytes(content)) };
        let counter = match name {
            b":method" => {
                seen.is_connect = content == b"CONNECT";
                &mut seen.method
            }
            b":scheme" => &mut seen.scheme,
            b":authority" => &mut seen.authority,
            b":path" => {
                seen.path_empty = content.is_empty();
                &mut seen.path
            }
            b":status" => &mut seen.status,
            b":protocol" => &mut seen.protocol,
            b"host" => &mut seen.host,
            _ if name.first() == Some(&b':') => &mut seen.other,
            _ => continue,
        };
        *counter += 1;
    }
    let error = |message: &str| connection_error(ruby, this, sym().protocol_error, Some(&message), None);
    if seen.path_empty {
        return error("path is empty");
    }
    let valid = if response {
        let requests = seen.method + seen.scheme + seen.authority + seen.path + seen.protocol;
        seen.status == 1 && requests + seen.other == 0
    } else {
        let rest = (seen.scheme, seen.path);
        seen.method == 1
            && seen.status + seen.other == 0
            && match (seen.is_connect, seen.protocol) {
                // RFC 9113 §8.5: nothing but the authority.
                (true, 0) => seen.authority == 1 && rest == (0, 0),
                // RFC 8441 §4, once this side has offered it.
                (true, 1) => seen.authority == 1 && rest == (1, 1) && offers_connect_protocol(this)?,
                (_, 0) => rest == (1, 1) && (seen.authority == 1 || seen.authority == 0 && seen.host > 0),
                _ => false,
            }
    };
    if valid { Ok(()) } else { error("invalid pseudo-headers") }
}

fn offers_connect_protocol(this: Obj<Connection>) -> Result<bool, Error> {
    let offered = settings::get(this.local_settings.get(), sym().settings_enable_connect_protocol)?;
    Ok(converted(offered)? == Some(1_i64))
}
