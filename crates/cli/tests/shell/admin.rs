//! The admin page's login and session, at `--admin`.

use serde_json::{Value, json};
use tokio::time::timeout;
use wireloom::Connector;
use wireloom::client::{Request, Response};

use crate::process::{DEADLINE, Folder, Server, folder};

const HUB: &str = r#"
[client]
anonymous = true
[api]
key = "a key for tests"
[[namespace]]
name = "rooms"
subscribe = "anyone"
publish = "anyone"
presence = true
history_size = 10
history_ttl = "1h"
"#;

/// A server with a hub, and the browser of an operator.
struct Admin {
    server: Server,
    folder: Folder,
    cookie: Option<String>,
}

impl Admin {
    async fn start(name: &str, args: &[&str]) -> Self {
        let folder = folder(name);
        let file = folder.join("hub.toml");
        std::fs::write(&file, HUB).unwrap();
        let hub = ["--hub", file.to_str().unwrap(), "--admin", "127.0.0.1:0"];
        let server = Server::start(&[&hub, args].concat()).await;
        Self { server, folder, cookie: None }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.addresses[1])
    }

    /// A request as the page sends it.
    fn post(&self, path: &str, body: &Value) -> Request {
        let url = self.url(path);
        let request = Request::post(url, body.to_string()).header("origin", self.url("").as_str());
        match &self.cookie {
            Some(cookie) => request.header("cookie", format!("other=1; {cookie}")),
            None => request,
        }
    }

    async fn status(&self, path: &str, body: &Value) -> u16 {
        send(self.post(path, body)).await.status
    }

    async fn log_in(&mut self) -> String {
        let response = send(self.post("/admin/login", &json!({ "key": "a key for tests" }))).await;
        assert_eq!(response.status, 204);
        let set = String::from_utf8(response.headers.get("set-cookie").unwrap().to_vec()).unwrap();
        self.cookie = set.split(';').next().map(str::to_owned);
        set
    }

    /// The result of a call.
    async fn call(&self, method: &str, request: Value) -> Value {
        let mut response = send(self.post(&format!("/admin/api/{method}"), &request)).await;
        let body = response.body.bytes().await.unwrap();
        assert_eq!(response.status, 200, "{body:?}");
        serde_json::from_slice(&body).unwrap()
    }

    async fn session(&self) -> Value {
        let cookie = self.cookie.clone().unwrap_or_default();
        let mut response = send(Request::get(self.url("/admin/session")).header("cookie", &cookie)).await;
        assert_eq!(response.headers.get("cache-control"), Some(&b"no-store"[..]));
        serde_json::from_slice(&response.body.bytes().await.unwrap()).unwrap()
    }
}

async fn send(request: Request) -> Response {
    Connector::new().request(request).await.unwrap()
}

#[tokio::test]
async fn an_operator_logs_in_with_the_key_and_calls_the_server_api() {
    let mut admin = Admin::start("admin", &[]).await;
    assert_eq!(admin.session().await, json!({ "enabled": true, "open": false }));
    assert_eq!(admin.status("/admin/api/channels", &json!({})).await, 401);
    let set = admin.log_in().await;
    assert!(set.ends_with("; Path=/admin; HttpOnly; SameSite=Strict; Max-Age=43200"), "{set}");
    assert_eq!(admin.session().await, json!({ "enabled": true, "open": true }));

    let mut room = wireloom::connect(&admin.server.url("/rooms/a")).await.unwrap();
    // The WebSocket is open before it is subscribed.
    let is_listed = async {
        while admin.call("channels", json!({})).await["result"]["channels"]
            != json!({ "rooms:a": { "num_clients": 1 } })
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, is_listed).await.expect("the room is listed");
    let published = admin.call("publish", json!({ "channel": "rooms:a", "data": { "n": 1 } })).await;
    assert_eq!(published["result"]["offset"], 1, "{published}");
    assert_eq!(room.recv_owned().await.unwrap().unwrap().as_bytes(), br#"{"n":1}"#);
    let history = admin.call("history", json!({ "channel": "rooms:a", "limit": 5 })).await;
    assert_eq!(history["result"]["publications"][0]["data"], json!({ "n": 1 }), "{history}");
    // The gate is that of the server API.
    assert_eq!(admin.call("publish", json!({ "channel": "no:a", "data": 1 })).await["error"]["code"], 102);

    // Refused commands change nothing.
    let publish = json!({ "channel": "rooms:b", "data": 1 });
    let broadcast = json!({ "channels": ["rooms:c", "no:a", "rooms:d"], "data": 1 });
    let commands = json!([{ "publish": publish }, { "broadcast": broadcast }, { "info": {} }]);
    admin.call("batch", json!({ "commands": commands })).await;
    let logged = "the admin page has changed something";
    for (method, channels) in
        [("publish", &["rooms:a"][..]), ("publish", &["rooms:b"]), ("broadcast", &["rooms:c", "rooms:d"])]
    {
        // The channels of a broadcast in any order.
        let mut left = channels.to_vec();
        for _ in channels {
            let line = admin.server.logged(logged).await;
            assert!(line.contains(&format!("method=\"{method}\"")) && !line.contains("\"n\""), "{line}");
            let at = left.iter().position(|channel| line.contains(*channel));
            left.remove(at.unwrap_or_else(|| panic!("{left:?}: {line}")));
        }
    }

    // A client without a user is known by its id alone.
    let presence = admin.call("presence", json!({ "channel": "rooms:a" })).await;
    let clients = presence["result"]["presence"].as_object().unwrap();
    let client = clients.keys().next().expect("the subscriber").clone();
    assert_eq!(admin.call("disconnect", json!({})).await["error"]["code"], 107);
    admin.call("disconnect", json!({ "client": client })).await;
    let line = admin.server.logged(logged).await;
    assert!(line.contains("disconnect") && line.contains(&client), "{line}");
    assert!(room.recv_owned().await.unwrap().is_none());

    assert_eq!(admin.status("/admin/logout", &json!({})).await, 204);
    assert_eq!(admin.status("/admin/api/channels", &json!({})).await, 401);
    assert_eq!(admin.session().await, json!({ "enabled": true, "open": false }));
}

#[tokio::test]
async fn a_session_is_used_by_the_page_of_its_own_address_alone() {
    let mut admin =
        Admin::start("admin-origin", &["--allow-host", "admin.example", "--allow-origin", "*"]).await;
    admin.log_in().await;
    let address = admin.server.addresses[1].clone();
    let (host, port) = address.split_once(':').unwrap();
    let own = format!("http://{address}");
    let mut cookie = admin.cookie.clone().unwrap();
    for (origin, named, status) in [
        (Some(&*own), &*address, 200),
        (Some("http://admin.example"), "admin.example", 200),
        (Some("https://admin.example"), "admin.example", 200),
        // Another server on this host has the same site, and so the cookie.
        (Some(&*format!("http://{host}:1{port}")), &*address, 403),
        (Some("https://evil.example"), &*address, 403),
        (Some("null"), &*address, 403),
        // Browsers send it with every POST.
        (None, &*address, 403),
        // DNS rebinding.
        (Some("http://evil.example"), "evil.example", 403),
    ] {
        for (path, body) in
            [("login", r#"{"key":"a key for tests"}"#), ("api/channels", "{}"), ("logout", "")]
        {
            if path == "logout" && status == 200 {
                continue;
            }
            let request = Request::post(admin.url(&format!("/admin/{path}")), body.to_owned())
                .header("cookie", &cookie);
            let request = match origin {
                Some(origin) => request.header("origin", origin),
                None => request,
            };
            let response = Connector::new().host(named).request(request).await.unwrap();
            let expected = if path == "login" && status == 200 { 204 } else { status };
            assert_eq!(response.status, expected, "{path} of {origin:?} at {named}");
            if expected == 204 {
                let set = std::str::from_utf8(response.headers.get("set-cookie").unwrap()).unwrap();
                cookie = set.split(';').next().unwrap().to_owned();
            }
            let is_secure = response.headers.get("set-cookie").is_some_and(|set| set.ends_with(b"; Secure"));
            assert_eq!(is_secure, path == "login" && origin == Some("https://admin.example"));
        }
    }
    let read = send(Request::get(admin.url("/admin/api/channels")).header("cookie", &cookie)).await;
    assert_eq!(read.status, 405);
    // Never on the public address.
    for path in ["/admin/session", "/admin/login", "/admin/api/channels"] {
        assert!(admin.server.get(path).await.starts_with("HTTP/1.1 404"), "{path}");
    }
}

/// --allow-origin names pages that may open WebSockets; the server's state is not for them, and figures are not for other hosts.
#[tokio::test]
async fn figures_and_state_are_for_own_pages_by_known_hosts_whatever_origins_are_allowed() {
    for allowed in [None, Some("https://a.example"), Some("*")] {
        let option = allowed.map_or_else(Vec::new, |allowed| vec!["--allow-origin", allowed]);
        let public = Server::start(&[&["--allow-host", "admin.example"], &*option].concat()).await;
        let admin =
            Admin::start("admin-figures", &[&["--allow-host", "admin.example"], &*option].concat()).await;
        for (address, is_admin) in [(&public.addresses[0], false), (&admin.server.addresses[1], true)] {
            for (host, is_known) in [
                (&**address, true),
                ("wireloom:9090", true),
                ("admin.example", true),
                ("a.example", false),
                ("evil.example", false),
            ] {
                let own = format!("http://{host}");
                for (origin, is_own) in [
                    (None, true),
                    // A name without a dot is known, but is not that of this server.
                    (Some(&*own), host == &**address || host == "admin.example"),
                    (Some("https://a.example"), false),
                    (Some("https://b.example"), false),
                ] {
                    let case = format!("{origin:?} at {host}, admin: {is_admin}, allowed: {allowed:?}");
                    let connector = match origin {
                        Some(origin) => Connector::new().host(host).origin(origin),
                        None => Connector::new().host(host),
                    };
                    let get = async |path: &str| {
                        let request = Request::get(format!("http://{address}{path}"));
                        let request =
                            origin.iter().fold(request, |request, origin| request.header("origin", *origin));
                        connector.request(request).await.unwrap()
                    };
                    let status = if is_known { 200 } else { 403 };
                    assert_eq!(get("/metrics").await.status, status, "{case}");
                    if !is_admin {
                        continue;
                    }
                    let mut live = get("/live").await;
                    assert_eq!(live.status, status, "{case}");
                    if is_known {
                        let access: Value =
                            serde_json::from_slice(&live.body.bytes().await.unwrap()).unwrap();
                        assert_eq!(access["allowed"], is_own, "{case}");
                    }
                    let opened = connector.connect(&format!("ws://{address}/live")).await;
                    assert_eq!(opened.is_ok(), is_known && is_own, "{case}");
                }
            }
        }
    }
}

/// A browser may send a page over http the cookie of the same host over https.
#[tokio::test]
async fn a_session_is_not_for_the_page_over_another_scheme() {
    let mut admin = Admin::start("admin-scheme", &[]).await;
    let address = admin.server.addresses[1].clone();
    for (own, other) in [("https", "http"), ("http", "https")] {
        let post = |scheme: &str, path: &str, body: &str, cookie: &str| {
            Request::post(admin.url(path), body.to_owned())
                .header("origin", format!("{scheme}://{address}"))
                .header("cookie", cookie)
        };
        let opened = send(post(own, "/admin/login", r#"{"key":"a key for tests"}"#, "")).await;
        let set = String::from_utf8(opened.headers.get("set-cookie").unwrap().to_vec()).unwrap();
        let cookie = set.split(';').next().unwrap();
        for (scheme, status) in [(other, 401), (own, 200)] {
            let call = send(post(scheme, "/admin/api/channels", "{}", cookie)).await;
            assert_eq!(call.status, status, "{scheme} with the session of {own}");
        }
        send(post(other, "/admin/logout", "", cookie)).await;
        assert_eq!(send(post(own, "/admin/api/channels", "{}", cookie)).await.status, 200);
        send(post(own, "/admin/logout", "", cookie)).await;
        assert_eq!(send(post(own, "/admin/api/channels", "{}", cookie)).await.status, 401);
    }
    admin.log_in().await;
    assert_eq!(admin.session().await, json!({ "enabled": true, "open": true }));
}

#[tokio::test]
async fn wrong_keys_are_counted_and_a_new_key_ends_sessions() {
    let mut admin = Admin::start("admin-keys", &[]).await;
    admin.log_in().await;
    for body in
        [json!({ "key": "" }), json!({ "key": "a key for test" }), json!({ "key": "b key for tests" })]
    {
        assert_eq!(admin.status("/admin/login", &body).await, 403, "{body}");
    }
    for body in [json!({}), json!("key"), json!({ "key": 5 })] {
        assert_eq!(admin.status("/admin/login", &body).await, 400, "{body}");
    }
    assert_eq!(admin.status("/admin/login", &json!({ "key": "x".repeat(5_000) })).await, 413);
    for _ in 3..10 {
        assert_eq!(admin.status("/admin/login", &json!({ "key": "?" })).await, 403);
    }
    let refused = send(admin.post("/admin/login", &json!({ "key": "a key for tests" }))).await;
    let wait =
        refused.headers.get("retry-after").and_then(|wait| std::str::from_utf8(wait).ok()?.parse().ok());
    assert!(refused.status == 429 && wait.is_some_and(|wait: u64| (1..=60).contains(&wait)), "{wait:?}");
    admin.server.logged("a wrong key was sent to the admin page").await;
    let metrics = send(Request::get(admin.url("/metrics"))).await.body.bytes().await.unwrap();
    assert!(
        String::from_utf8_lossy(&metrics).contains("\nwireloom_hub_wrong_keys_total 10\n"),
        "that of the refusal was not looked at"
    );
    // A file that cannot be used changes nothing, and its error is one line.
    std::fs::write(admin.folder.join("hub.toml"), HUB.replace("[api]", "[api]\nkeys = 1")).unwrap();
    admin.server.signal("-HUP");
    let refused = admin.server.logged("stays as it was").await;
    assert!(
        refused.contains(": TOML parse error at line ") && refused.contains("unknown field `keys`"),
        "{refused}"
    );
    // The session that is open stays, until its key is replaced.
    assert_eq!(admin.status("/admin/api/channels", &json!({})).await, 200);
    std::fs::write(admin.folder.join("hub.toml"), HUB.replace("a key for tests", "a new key")).unwrap();
    admin.server.signal("-HUP");
    admin.server.logged("was loaded again").await;
    assert_eq!(admin.status("/admin/api/channels", &json!({})).await, 401);
    std::fs::write(admin.folder.join("hub.toml"), HUB.replace("[api]\nkey = \"a key for tests\"", ""))
        .unwrap();
    admin.server.signal("-HUP");
    admin.server.logged("was loaded again").await;
    assert_eq!(admin.status("/admin/login", &json!({ "key": "" })).await, 404);
    assert_eq!(admin.session().await, json!({ "enabled": false, "open": false }));
}
