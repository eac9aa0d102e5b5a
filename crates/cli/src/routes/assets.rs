//! The page at `/`: its HTML, script and style, which `page/build` makes from `page/`.

use wireloom::{IntoResponse, Request, Response};

/// Scripts and styles are loaded from this server only, not inline; WebSockets may connect to any address. A frame
/// loads /livez to check whether a lost server is back.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' ws: wss:; \
    img-src data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(&str, &str); 5] = [
    // RFC 9110 §12.5.5.
    ("Vary", "Accept-Encoding"),
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    // The page changes with the version of the server, at the same address.
    ("Cache-Control", "no-cache"),
];

/// A file of the page, and the same compressed by the build script.
macro_rules! file {
    ($content_type:literal, $name:literal) => {
        (
            concat!($content_type, "; charset=utf-8"),
            &include_bytes!(concat!("../page/", $name))[..],
            &include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz"))[..],
        )
    };
}

/// The file at this path, compressed for a client that accepts it.
pub(super) fn find(request: &Request) -> Option<Response> {
    let (content_type, plain, gzip) = match request.path() {
        "/" => file!("text/html", "page.html"),
        "/page.js" => file!("text/javascript", "page.js"),
        "/page.css" => file!("text/css", "page.css"),
        _ => return None,
    };
    let is_packed = accepts_gzip(request.header("accept-encoding"));
    let response = Response::new(200).with_body(content_type, if is_packed { gzip } else { plain });
    let coding: &[(&str, &str)] = if is_packed { &[("Content-Encoding", "gzip")] } else { &[] };
    Some(
        HEADERS
            .iter()
            .chain(coding)
            .try_fold(response, |response, (name, value)| response.with_header(name, value))
            .into_response(),
    )
}

/// RFC 9110 §12.5.3: gzip is listed, and its weight is not 0.
fn accepts_gzip(accepted: Option<&[u8]>) -> bool {
    let accepted = accepted.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default();
    accepted.split(',').any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameters.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight != Some(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compresses_for_clients_that_accept_it() {
        for (accepted, is_packed) in [
            (None, false),
            (Some("gzip, deflate, br, zstd"), true),
            (Some("br;q=1.0, GZIP;q=0.5"), true),
            (Some("gzip;q=0, br"), false),
            (Some("identity"), false),
        ] {
            assert_eq!(accepts_gzip(accepted.map(str::as_bytes)), is_packed, "{accepted:?}");
        }
    }
}
