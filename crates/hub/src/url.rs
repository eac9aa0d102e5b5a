//! URLs as they are shown in logs and errors.

/// The scheme, the host and the path of a URL: user information and the query may be secrets.
pub(crate) fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_no_secrets() {
        for (url, shown) in [
            ("https://hub:secret@backend:8443/hook?token=secret#a", "https://backend:8443/hook"),
            ("https://hub:se@cret@backend?token=secret", "https://backend"),
            ("http://[::1]:80/@a", "http://[::1]:80/@a"),
            ("ws+unix:/run/hub:/chat?secret", "ws+unix:/run/hub:/chat"),
            ("hub:secret@backend/hook", "backend/hook"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(url), shown, "{url}");
        }
    }
}
