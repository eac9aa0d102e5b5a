//! The rights table: each way in × user × token × setting, against a model that is written out here.

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Connector, WebSocket};

use super::streams::{Stream, http};
use super::{Client, Served};

const SETTINGS: [&str; 5] = ["token", "subscribed-client", "subscriber", "client", "anyone"];
const CHANNELS: [&str; 4] = ["rooms:x", "rooms:x#7", "rooms:x#8,9", "$rooms:x"];

/// One row of the table.
#[derive(Clone, Copy, Debug)]
struct Row<'a> {
    anonymous: bool,
    subscribe: &'a str,
    publish: &'a str,
    user_limited: bool,
    /// Empty for a client without a token.
    user: &'a str,
    /// Whether a subscription's token is sent, and which.
    token: Token,
    channel: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    None,
    Own,
    /// For another channel.
    Other,
    /// A connection's token, of the same user.
    Connection,
}

impl Row<'_> {
    fn may_connect(&self) -> bool {
        self.anonymous || !self.user.is_empty()
    }

    fn names_user(&self) -> Option<bool> {
        let (_, users) = self.channel.split_once('#').filter(|_| self.user_limited)?;
        Some(users.split(',').any(|user| user == self.user))
    }

    fn may_subscribe(&self) -> bool {
        match (self.token, self.names_user()) {
            (Token::Own, _) => true,
            (Token::Other | Token::Connection, _) => false,
            (Token::None, _) if self.channel.starts_with('$') => false,
            (Token::None, Some(named)) => named,
            (Token::None, None) => match self.subscribe {
                "anyone" => true,
                "client" | "subscriber" | "subscribed-client" => !self.user.is_empty(),
                _ => false,
            },
        }
    }

    fn may_publish(&self, is_subscribed: bool) -> bool {
        let is_closed = self.channel.starts_with('$') || self.names_user() == Some(false);
        (is_subscribed || !is_closed)
            && match self.publish {
                "anyone" => true,
                "client" => !self.user.is_empty(),
                "subscriber" => is_subscribed,
                "subscribed-client" => is_subscribed && !self.user.is_empty(),
                _ => false,
            }
    }

    fn subscription_token(&self) -> String {
        match self.token {
            Token::None => String::new(),
            Token::Own => sign(&json!({ "sub": self.user, "channel": self.channel })),
            Token::Other => sign(&json!({ "sub": self.user, "channel": "rooms:other" })),
            Token::Connection => sign(&json!({ "sub": self.user })),
        }
    }

    fn connection_token(&self) -> String {
        if self.user.is_empty() { String::new() } else { sign(&json!({ "sub": self.user })) }
    }
}

fn sign(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(b"secret")).unwrap()
}

fn config(anonymous: bool, subscribe: &str, publish: &str, user_limited: bool) -> String {
    format!(
        "[client]\nanonymous = {anonymous}\n[token]\nhmac_secret = \"secret\"\n[api]\nkey = \"key\"\n\
        [[namespace]]\nname = \"rooms\"\nsubscribe = \"{subscribe}\"\npublish = \"{publish}\"\n\
        allow_user_limited_channels = {user_limited}\n"
    )
}

/// The code of the answer to a command; `None` if it succeeded.
async fn code(client: &mut Client, method: &str, request: Value) -> Option<u64> {
    client.reply(method, request).await["error"]["code"].as_u64()
}

async fn by_sdk(served: &Served, row: Row<'_>) {
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let connect = json!({ "id": 1, "connect": { "token": row.connection_token() } });
    client.socket.send(&connect.to_string()).await.unwrap();
    if !row.may_connect() {
        assert_eq!(client.ended().await, 3500, "{row:?}");
        return;
    }
    client.id = 1;
    assert!(client.receive().await["connect"].is_object(), "{row:?}");
    let refused = |may: bool| if may { None } else { Some(103) };
    let publish = || json!({ "channel": row.channel, "data": 1 });
    assert_eq!(code(&mut client, "publish", publish()).await, refused(row.may_publish(false)), "{row:?}");
    let subscribe = json!({ "channel": row.channel, "token": row.subscription_token() });
    let subscribed = row.may_subscribe();
    assert_eq!(code(&mut client, "subscribe", subscribe).await, refused(subscribed), "{row:?}");
    assert_eq!(
        code(&mut client, "publish", publish()).await,
        refused(row.may_publish(subscribed)),
        "{row:?}"
    );
}

/// Without WebSocket: what `by_sdk` does, by a stream and requests of their own.
async fn by_emulation(served: &Served, row: Row<'_>, path: &str) {
    let request = json!({ "token": row.connection_token() });
    let (mut stream, connected) = Stream::connect(served, path, request).await;
    if !row.may_connect() {
        assert_eq!(connected["push"]["disconnect"]["code"], 3500, "{row:?}: {connected}");
        assert_eq!(stream.next_or_end().await, None, "{row:?}");
        return;
    }
    let publish = json!({ "channel": row.channel, "data": 1 });
    let subscribe = json!({ "channel": row.channel, "token": row.subscription_token() });
    let batch = [
        json!({ "id": 2, "publish": publish }),
        json!({ "id": 3, "subscribe": subscribe }),
        json!({ "id": 4, "publish": publish }),
    ];
    assert_eq!(stream.send(&batch.map(|command| command.to_string()).join("\n")).await, 204);
    let mut codes = Vec::new();
    while codes.len() < 3 {
        let reply = stream.next().await;
        if reply["push"].is_null() {
            codes.push(reply["error"]["code"].as_u64());
        }
    }
    let refused = |may: bool| if may { None } else { Some(103) };
    let subscribed = row.may_subscribe();
    let expected = [row.may_publish(false), subscribed, row.may_publish(subscribed)].map(refused);
    assert_eq!(codes, expected, "{row:?}");
}

async fn by_uni_websocket(served: &Served, row: Row<'_>) {
    let url = served.url.replace("/connection/websocket", "/connection/uni_websocket");
    let mut socket = wireloom::connect(&url).await.unwrap();
    let subs = json!({ row.channel: { "token": row.subscription_token() } });
    socket.send(&json!({ "token": row.connection_token(), "subs": subs }).to_string()).await.unwrap();
    let mut last = outcome(&mut socket).await;
    if row.may_connect() {
        assert!(last.unwrap().contains("\"connect\":"), "{row:?}");
        last = outcome(&mut socket).await;
    }
    match () {
        () if !row.may_connect() => assert_eq!(last, Err(3500), "{row:?}"),
        () if !row.may_subscribe() => assert_eq!(last, Err(3507), "{row:?}"),
        () => assert!(last.unwrap().contains("\"subscribe\":"), "{row:?}"),
    }
}

async fn by_stream(served: &Served, row: Row<'_>, path: &str) {
    let subs = json!({ row.channel: { "token": row.subscription_token() } });
    let connect = json!({ "token": row.connection_token(), "subs": subs });
    let request = Request::post(http(served, path), connect.to_string());
    let mut events = Connector::new().request(request).await.unwrap().body;
    let mut text = String::new();
    let expected = match () {
        () if !row.may_connect() => "\"code\":3500",
        () if !row.may_subscribe() => "\"code\":3507",
        () => "\"subscribe\":",
    };
    while !text.contains("\"code\":") && !text.contains("\"subscribe\":") {
        let chunk = events.chunk().await.unwrap().unwrap_or_else(|| panic!("{row:?}: {text}"));
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains(expected), "{row:?}: {text}");
}

/// The close code, or the message that comes back.
async fn outcome(socket: &mut WebSocket) -> Result<String, u16> {
    match tokio::time::timeout(std::time::Duration::from_secs(20), socket.recv_owned()).await.unwrap() {
        Ok(Some(message)) => Ok(message.as_text().unwrap().to_owned()),
        _ => Err(socket.end().unwrap().code().value()),
    }
}

async fn by_room(served: &Served, row: Row<'_>, in_query: bool) {
    let Some(name) = row.channel.strip_prefix("rooms:") else { return };
    let url = served.url.replace("/connection/websocket", &format!("/rooms/{}", name.replace('#', "%23")));
    let token = row.connection_token();
    let connector = Connector::new();
    let mut socket = match (token.is_empty(), in_query) {
        (true, _) => connector.connect(&url).await,
        (false, true) => connector.connect(&format!("{url}?token={token}")).await,
        (false, false) => connector.header("Authorization", format!("Bearer {token}")).connect(&url).await,
    }
    .unwrap();
    // A room has no token of a subscription.
    let row = Row { token: Token::None, ..row };
    if !(row.may_connect() && row.may_subscribe()) {
        assert_eq!(outcome(&mut socket).await, Err(1008), "{row:?}");
        return;
    }
    // The connection may be closed already.
    let _ = socket.send("1").await;
    let expected = if row.may_publish(true) { Ok("1".to_owned()) } else { Err(1008) };
    assert_eq!(outcome(&mut socket).await, expected, "{row:?}");
}

async fn by_api(served: &Served, row: Row<'_>) {
    for (key, status) in [("key", 200), ("other", 401)] {
        let body = json!({ "channel": row.channel, "data": 1 }).to_string();
        let request = Request::post(http(served, "/api/publish"), body).header("x-api-key", key);
        assert_eq!(Connector::new().request(request).await.unwrap().status, status, "{row:?}");
    }
}

#[tokio::test]
async fn each_way_in_grants_what_the_table_says() {
    // The rights to publish are independent of the rest, so that each setting is combined with one of them.
    for (turn, subscribe) in SETTINGS.into_iter().enumerate() {
        for (anonymous, user_limited) in [(false, false), (false, true), (true, false), (true, true)] {
            let publish =
                SETTINGS[(turn + usize::from(anonymous) + 2 * usize::from(user_limited)) % SETTINGS.len()];
            let served = Served::start(&config(anonymous, subscribe, publish, user_limited), |hub| hub).await;
            for user in ["", "7"] {
                for channel in CHANNELS {
                    for token in [Token::None, Token::Own, Token::Other, Token::Connection] {
                        let row = Row { anonymous, subscribe, publish, user_limited, user, token, channel };
                        by_sdk(&served, row).await;
                        let stream = ["/connection/uni_sse", "/connection/uni_http_stream"][turn % 2];
                        by_stream(&served, row, stream).await;
                        by_uni_websocket(&served, row).await;
                        let stream = ["/connection/sse", "/connection/http_stream"][turn % 2];
                        by_emulation(&served, row, stream).await;
                        if token == Token::None {
                            by_room(&served, row, turn % 2 == 0).await;
                            by_api(&served, row).await;
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_room_without_a_namespace_says_what_is_missing() {
    let served = Served::start("[client]\nanonymous = true\n", |hub| hub).await;
    let url = served.url.replace("/connection/websocket", "/rooms/x");
    let Err(wireloom::Error::Refused(response)) = wireloom::connect(&url).await else { panic!("{url}") };
    let body = String::from_utf8_lossy(response.body());
    assert_eq!(
        (response.status(), &*body),
        (404, "the configuration of the hub has no namespace \"rooms\"\n")
    );
}

#[tokio::test]
async fn a_room_of_a_closed_namespace_is_closed() {
    let served = Served::start(&config(false, "token", "anyone", false), |hub| hub).await;
    let mut room = wireloom::connect(&served.url.replace("/connection/websocket", "/rooms/x")).await.unwrap();
    assert_eq!(outcome(&mut room).await, Err(1008));
    served.has_ended(3500, 1).await;
    assert_eq!(served.hub.stats().publications, 0);
}

#[tokio::test]
async fn a_room_receives_nothing_of_other_channels() {
    let config =
        config(true, "anyone", "anyone", false).replacen("[token]", "personal_channel = true\n[token]", 1);
    let served = Served::start(&config, |hub| hub).await;
    let token = sign(&json!({ "sub": "7", "channels": ["rooms:y"], "subs": { "rooms:z": {} } }));
    let url = served.url.replace("/connection/websocket", &format!("/rooms/x?token={token}"));
    let mut room = wireloom::connect(&url).await.unwrap();
    room.send("0").await.unwrap();
    assert_eq!(outcome(&mut room).await, Ok("0".to_owned()));
    let body = json!({ "user": "7", "channel": "rooms:v" }).to_string();
    let request = Request::post(http(&served, "/api/subscribe"), body).header("x-api-key", "key");
    assert_eq!(Connector::new().request(request).await.unwrap().status, 200);
    for channel in ["#7", "rooms:y", "rooms:z", "rooms:v", "rooms:x"] {
        served.hub.publish(channel, json!(channel).to_string()).await.unwrap();
    }
    assert_eq!(outcome(&mut room).await, Ok("\"rooms:x\"".to_owned()));
    // Nor does it end with such a subscription.
    let body = json!({ "user": "7", "channel": "rooms:y" }).to_string();
    let request = Request::post(http(&served, "/api/unsubscribe"), body).header("x-api-key", "key");
    assert_eq!(Connector::new().request(request).await.unwrap().status, 200);
    room.send("1").await.unwrap();
    assert_eq!(outcome(&mut room).await, Ok("1".to_owned()));
}
