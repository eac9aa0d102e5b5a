//! The page at `/`: its HTML, script and style, which `page/build` makes from `page/`.

use wireloom::{IntoResponse, Response};

/// Scripts and styles are loaded from this server only, not inline; WebSockets may connect to any address. A frame
/// loads /healthz to check whether a lost server is back.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' ws: wss:; \
    img-src data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(&str, &str); 4] = [
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    // The page changes with the version of the server, at the same address.
    ("Cache-Control", "no-cache"),
];

/// The file at this path.
pub(super) fn find(path: &str) -> Option<Response> {
    let (content_type, body) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("../page/page.html")),
        "/page.js" => ("text/javascript; charset=utf-8", include_str!("../page/page.js")),
        "/page.css" => ("text/css; charset=utf-8", include_str!("../page/page.css")),
        _ => return None,
    };
    let response = Response::new(200).with_body(content_type, body);
    Some(
        HEADERS
            .iter()
            .try_fold(response, |response, (name, value)| response.with_header(name, value))
            .into_response(),
    )
}
