//! The paths of the admin page: a login with the API key, and the server API for the session that it opens.

use serde::Deserialize;
use serde_json::json;
use tracing::info;
use wireloom::{Body, IntoResponse as _, OriginPolicy, Request, Response};

use crate::api::Sender;
use crate::hub::Hub;
use crate::logins::{Login, SESSION_TTL};

/// The cookie of a session. Cookies are shared by all ports of a host: its path keeps it from the other servers.
const COOKIE: &str = "wireloom_admin";

/// Room for a key of any reasonable length.
const LOGIN_LEN_MAX: usize = 4 << 10;

#[derive(Deserialize)]
struct LoginRequest {
    key: String,
}

impl Hub {
    /// Answers a request of the admin page, whose paths begin with `/admin/`; `None` for any other. Serve it at an address that only
    /// operators reach.
    ///
    /// | path | |
    /// |---|---|
    /// | `GET /admin/session` | whether there is an API key, and whether this browser has logged in |
    /// | `POST /admin/login` | opens a session of 12 hours with `{"key": …}`, which is the key of the server API, and sets its cookie |
    /// | `POST /admin/logout` | ends the session |
    /// | `POST /admin/api/METHOD` | the server API, for a session |
    ///
    /// `pages` are the origins whose pages may send these requests. It should allow only the origin of the page, by names that no third
    /// party can make resolve to this server: [`OriginPolicy::with_same_origin`]. A session ends early when the key changes.
    pub async fn answer_admin(&self, request: &mut Request, pages: &OriginPolicy) -> Option<Response> {
        let path = request.path().strip_prefix("/admin/")?.to_owned();
        let answer = self.answer_admin_path(&path, request, pages).await;
        // Answers to a session are private: no cache may store them.
        Some(answer.with_header("Cache-Control", "no-store").into_response())
    }

    async fn answer_admin_path(&self, path: &str, request: &mut Request, pages: &OriginPolicy) -> Response {
        let now = self.0.clock.now();
        let text = |name| request.header(name).map(|value| std::str::from_utf8(value).unwrap_or("?"));
        let (origin, host) = (text("origin").map(str::to_owned), text("host").unwrap_or_default());
        if !pages.allows_host(host) {
            return Response::text(403, "this host name is not allowed\n");
        }
        let session = cookie(request);
        let key = self.0.settings().config.api.key.clone();
        let is_open =
            key.as_ref().is_some_and(|key| self.0.logins.is_open(&session, key, origin.as_deref(), now));
        if path == "session" {
            let state = json!({ "enabled": key.is_some(), "open": is_open });
            return Response::new(200).with_body("application/json", state.to_string());
        }
        let Some(key) = key else { return Response::not_found() };
        if request.method() != "POST" {
            return Response::text(405, "the admin page sends POST\n")
                .with_header("Allow", "POST")
                .into_response();
        }
        // Browsers send an Origin with every POST. The cookie alone is no proof: SameSite ignores ports, and in some browsers also the
        // difference between http and https.
        let Some(origin) = origin.filter(|origin| pages.allows_page(Some(origin), host)) else {
            return Response::text(403, "this origin is not allowed\n");
        };
        match path {
            "login" => self.log_in(request, &key, &origin).await,
            "logout" => {
                if is_open {
                    self.0.logins.log_out(&session);
                }
                let gone = format!("{COOKIE}=; Path=/admin; HttpOnly; SameSite=Strict; Max-Age=0");
                Response::new(204).with_header("Set-Cookie", &gone).into_response()
            }
            _ => match path.strip_prefix("api/") {
                None => Response::not_found(),
                Some(_) if !is_open => Response::text(401, "log in first\n"),
                Some(method) => {
                    let operator = Sender::AdminPage(request.peer().ip());
                    self.answer_method(method, request, operator).await
                }
            },
        }
    }

    async fn log_in(&self, request: &mut Request, key: &str, origin: &str) -> Response {
        let peer = request.peer().ip();
        let body = std::mem::replace(request.body_mut(), Body::empty());
        let body = match body.with_len_max(LOGIN_LEN_MAX).bytes().await {
            Ok(body) => body,
            Err(error) => return error.into(),
        };
        let Ok(LoginRequest { key: given }) = serde_json::from_slice(&body) else {
            return Response::text(400, "the body is not {\"key\": …}\n");
        };
        let now = self.0.clock.now();
        match self.0.logins.log_in(peer, given.as_bytes(), key, origin, now) {
            Login::Opened(session) => {
                info!(%peer, "logged in to the admin page");
                let secure = if origin.starts_with("https://") { "; Secure" } else { "" };
                let age = SESSION_TTL.as_secs();
                let cookie = format!(
                    "{COOKIE}={session}; Path=/admin; HttpOnly; SameSite=Strict; Max-Age={age}{secure}"
                );
                Response::new(204).with_header("Set-Cookie", &cookie).into_response()
            }
            Login::WrongKey => {
                self.0.note_wrong_key(peer, "the admin page");
                Response::text(403, "this is not the API key\n")
            }
            // The key was not looked at.
            Login::TooMany(wait) => Response::text(429, "too many wrong keys\n")
                .with_header("Retry-After", wait.as_secs().max(1).to_string())
                .into_response(),
        }
    }
}

/// The id of the session in the request's cookies (RFC 6265 §4.2); empty without one. HTTP/2 may send them in several fields (RFC 9113
/// §8.2.3).
fn cookie(request: &Request) -> Vec<u8> {
    let fields = request.headers().filter(|(name, _)| name.eq_ignore_ascii_case("cookie"));
    let mut pairs = fields.flat_map(|(_, value)| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    let id = pairs.find_map(|pair| pair.strip_prefix(COOKIE.as_bytes())?.strip_prefix(b"="));
    id.unwrap_or_default().to_vec()
}
