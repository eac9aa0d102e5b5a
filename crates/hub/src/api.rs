//! The server API: commands of an application's backend over HTTP, with the names of Centrifugo's HTTP API.
//!
//! `POST /api/METHOD` with a JSON object, answered by `{"result": …}` or `{"error": {"code": …, "message": …}}`.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, Bytes};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;
use tokio::sync::Mutex;
use tracing::info;
use wireloom::{Request, Response};

use crate::budget::{BYTES_PER_UNIT, READ_PER_UNIT, charge};
use crate::concurrently::concurrently;
use crate::engine::{Action, Control, EngineError};
use crate::history::{HistoryQuery, Position};
use crate::hub::{Hub, PublishOptions};
use crate::node::PublishError;
use crate::protocol::{ClientInfo, Disconnect, ErrorCode, Publication, StreamPosition};
use crate::rights::{self, Operation, Requester};
use crate::spans::Span;
use crate::subscribe::check_granted;

/// The maximum number of commands in a batch.
const BATCH_MAX: usize = 1_000;

/// The maximum length of the publications of all histories in a reply, but for one of each: a reply waits as a whole for its reader, in the
/// memory of the address where the API is served.
const HISTORIES_LEN_MAX: usize = 1 << 20;

/// The maximum length of all lists of clients and channels in a reply. They are not read in parts.
const LISTS_LEN_MAX: usize = 8 << 20;

/// The maximum number of publications of a broadcast, and of commands of a parallel batch, that are carried out at the
/// same time.
const CONCURRENT_MAX: usize = 64;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Publish {
    channel: String,
    channels: Vec<String>,
    data: Option<Box<RawValue>>,
    b64data: String,
    skip_history: bool,
    idempotency_key: String,
    tags: HashMap<String, String>,
    /// Would leave out a publication that is older than the last. Without it that one is delivered.
    version: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct User {
    user: String,
    channel: String,
    client: String,
    /// Would name one connection, too. Without it more would be reached than was asked for.
    session: String,
    whitelist: Vec<String>,
    disconnect: Option<Code>,
    code: u16,
    reason: String,
    expired: bool,
    expire_at: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Code {
    code: u16,
    reason: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Channel {
    channel: String,
    pattern: String,
    limit: i32,
    since: Option<StreamPosition>,
    reverse: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Batch {
    commands: Vec<BTreeMap<String, Box<RawValue>>>,
    /// The commands are carried out at the same time, in any order.
    parallel: bool,
}

const METHODS: &str = "publish, broadcast, subscribe, unsubscribe, disconnect, refresh, presence, presence_stats, history, \
    history_remove, channels, info and batch";

/// The response to a wrong key. It does not say what is wrong with it.
fn unauthorized() -> Response {
    Response::text(401, "unauthorized\n")
}

impl Hub {
    /// Answers a request for the server API, whose paths begin with `/api`; `None` for any other.
    pub async fn answer_api(&self, request: &mut Request) -> Option<Response> {
        let path = request.path();
        if path != "/api" && !path.starts_with("/api/") {
            return None;
        }
        Some(self.answer_call(request).await)
    }

    async fn answer_call(&self, request: &mut Request) -> Response {
        let Some(key) = self.0.settings().config.api.key.clone() else { return Response::not_found() };
        let method = request.path().strip_prefix("/api/").unwrap_or_default().to_owned();
        let given = match (request.header("x-api-key"), request.header("authorization")) {
            (Some(given), _) => Some(given),
            (None, Some(given)) => given.strip_prefix(b"apikey "),
            (None, None) => None,
        };
        if !given.is_some_and(|given| bool::from(given.ct_eq(key.as_bytes()))) {
            self.0.note_wrong_key(request.peer().ip(), "the server API");
            return unauthorized();
        }
        if request.method() != "POST" {
            return Response::text(405, "the server API takes POST\n");
        }
        self.answer_method(&method, request, Sender::Backend).await
    }

    /// Answers a call whose sender may call everything.
    pub(crate) async fn answer_method(
        &self,
        method: &str,
        request: &mut Request,
        sender: Sender,
    ) -> Response {
        let span = Span::received("api", method, request);
        let body = match request.bytes().await {
            Ok(body) => body,
            Err(error) => return error.into(),
        };
        match self.call(method, &body, sender).await {
            Ok(result) => respond("result", &result),
            Err(Failure::NoSuchMethod) => {
                span.fail("no such method");
                Response::text(404, format!("there is no such method; there are {METHODS}\n"))
            }
            Err(Failure::Malformed(reason)) => {
                // The reason may quote the body, which is not for those who read traces.
                span.fail("a malformed request");
                Response::text(400, format!("the request is not the JSON of this method: {reason}\n"))
            }
            Err(Failure::Invalid(reason)) => {
                span.fail(reason);
                respond("error", &raw(&invalid(reason)))
            }
            Err(Failure::TooLong(reason)) => {
                span.fail(reason);
                respond("error", &raw(&too_long(reason)))
            }
            Err(Failure::Refused(code)) => {
                span.fail(code.message());
                respond("error", &raw(&error(code)))
            }
        }
    }

    async fn call(&self, method: &str, body: &[u8], sender: Sender) -> Result<Box<RawValue>, Failure> {
        if method != "batch" {
            return self.call_one(method, body, sender, &Room::of(1)).await;
        }
        let batch: Batch = parse(body)?;
        if batch.commands.len() > BATCH_MAX {
            return Err(Failure::Refused(ErrorCode::LimitExceeded));
        }
        if batch.commands.iter().any(|command| command.len() != 1) {
            return Err(Failure::Malformed("each command of a batch has one method".into()));
        }
        let room = Arc::new(Room::of(batch.commands.len()));
        let most = if batch.parallel { CONCURRENT_MAX } else { 1 };
        let calls = batch.commands.into_iter().flatten().map(|(method, body)| {
            let (hub, room) = (self.clone(), room.clone());
            async move {
                match hub.call_one(&method, body.get().as_bytes(), sender, &room).await {
                    Ok(result) => raw(&BTreeMap::from([(method, result)])),
                    Err(Failure::Refused(code)) => refused(code),
                    Err(Failure::TooLong(reason)) => raw(&json!({ "error": too_long(reason) })),
                    Err(Failure::NoSuchMethod) => refused(ErrorCode::MethodNotFound),
                    Err(Failure::Invalid(reason)) => raw(&json!({ "error": invalid(reason) })),
                    Err(Failure::Malformed(_)) => refused(ErrorCode::BadRequest),
                }
            }
        });
        let replies = concurrently(most, calls).await;
        Ok(raw(&BTreeMap::from([("replies", replies)])))
    }

    async fn call_one(
        &self,
        method: &str,
        body: &[u8],
        sender: Sender,
        room: &Room,
    ) -> Result<Box<RawValue>, Failure> {
        let change = |method| Change { sender, method };
        match method {
            "publish" => {
                let request: Publish = parse(body)?;
                self.api_publish(&request.channel, &request, change("publish")).await
            }
            "broadcast" => {
                let mut request: Publish = parse(body)?;
                if request.channels.is_empty() {
                    return Err(Failure::Invalid("channels is missing or empty"));
                }
                let channels = std::mem::take(&mut request.channels);
                let (request, change) = (Arc::new(request), change("broadcast"));
                let publications = channels.into_iter().map(|channel| {
                    let (hub, request) = (self.clone(), request.clone());
                    async move {
                        match hub.api_publish(&channel, &request, change).await {
                            Ok(result) => Ok(raw(&BTreeMap::from([("result", result)]))),
                            Err(Failure::Refused(code)) => Ok(refused(code)),
                            Err(Failure::Invalid(reason)) => Ok(raw(&json!({ "error": invalid(reason) }))),
                            Err(other) => Err(other),
                        }
                    }
                });
                let responses = concurrently(CONCURRENT_MAX, publications).await;
                let responses = responses.into_iter().collect::<Result<Vec<_>, _>>()?;
                Ok(raw(&BTreeMap::from([("responses", responses)])))
            }
            "subscribe" => {
                let request: User = parse(body)?;
                if request.expire_at.is_some_and(|at| at > 0) {
                    return Err(Failure::Invalid(
                        "expire_at of a subscription is not supported: call unsubscribe",
                    ));
                }
                let channel = self.check(&request.channel, Operation::Subscribe { token: "" })?.to_owned();
                let clients = self.0.clients_of(&request.user, &request.client);
                check_granted(&self.0, &clients, &channel).map_err(Failure::Refused)?;
                self.control(&request, Action::Subscribe { channel }, change("subscribe")).await
            }
            "unsubscribe" => {
                let request: User = parse(body)?;
                let channel = named(&request.channel, "channel is missing")?.to_owned();
                self.control(&request, Action::Unsubscribe { channel }, change("unsubscribe")).await
            }
            "disconnect" => {
                let request: User = parse(body)?;
                let own = Code { code: request.code, reason: request.reason.clone() };
                let Code { code, reason } = request.disconnect.as_ref().unwrap_or(&own);
                let (code, reason) = if *code == 0 { (3503, "force disconnect") } else { (*code, &**reason) };
                if !(3000..5000).contains(&code) || reason.len() > 123 {
                    return Err(Failure::Invalid("code is not 3000 to 4999, or reason has over 123 bytes"));
                }
                let (reason, except) = (reason.to_owned(), request.whitelist.clone());
                self.control(&request, Action::Disconnect { code, reason, except }, change("disconnect"))
                    .await
            }
            "refresh" => {
                let request: User = parse(body)?;
                let action = match request.expired {
                    true => Action::Disconnect {
                        code: Disconnect::Expired.code(),
                        reason: Disconnect::Expired.reason().into(),
                        except: Vec::new(),
                    },
                    false => Action::Refresh { expire_at: request.expire_at },
                };
                self.control(&request, action, change("refresh")).await
            }
            "presence" | "presence_stats" => self.api_presence(method, parse(body)?, room).await,
            "history" => self.api_history(parse(body)?, room.history_len_max).await,
            "history_remove" => {
                let request: Channel = parse(body)?;
                let channel = self.check(&request.channel, Operation::RemoveHistory)?;
                let removed = self.0.engine().remove_history(channel).await;
                removed.map_err(|error| self.failed("remove a history", channel, &error))?;
                change("history_remove").log(channel, "", "");
                Ok(raw(&json!({})))
            }
            "channels" => {
                let request: Channel = parse(body)?;
                let too_long =
                    || Failure::TooLong("too many channels for a reply; name fewer of them by pattern");
                let mut lists = room.lists.lock().await;
                let channels = self.0.cluster_channels(&request.pattern, lists.len_max).await;
                let channels = channels.map_err(|error| self.failed("list channels", "", &error))?;
                let channels = channels.ok_or_else(too_long)?.into_iter();
                let listed: BTreeMap<_, _> =
                    channels.map(|(name, num_clients)| (name, Listed { num_clients })).collect();
                lists.make("channels", &listed).await.ok_or_else(too_long)
            }
            "info" => Ok(raw(&BTreeMap::from([("nodes", self.0.cluster_info().await)]))),
            _ => Err(Failure::NoSuchMethod),
        }
    }

    /// Asks the gate about an operation of the backend; returns the channel.
    fn check<'a>(&self, channel: &'a str, operation: Operation<'_>) -> Result<&'a str, Failure> {
        let channel = named(channel, "channel is missing")?;
        match rights::check(
            &self.0.settings(),
            &self.0.clock,
            &self.0.warnings,
            Requester::Backend,
            channel,
            operation,
        ) {
            Ok(_) => Ok(channel),
            Err(ErrorCode::BadRequest) => {
                Err(Failure::Invalid("the name in channel does not match channel_regex of its namespace"))
            }
            Err(code) => Err(Failure::Refused(code)),
        }
    }

    /// Counts a failure of the engine in the server API.
    fn failed(&self, method: &str, channel: &str, error: &EngineError) -> Failure {
        Failure::Refused(match error {
            EngineError::ChannelLimit | EngineError::TooLong => ErrorCode::LimitExceeded,
            EngineError::Refused(_) | EngineError::Unavailable(_) => {
                self.0.note_engine_failure(channel, error, &format!("the server API did not {method}"));
                ErrorCode::Internal
            }
        })
    }

    async fn api_publish(
        &self,
        channel: &str,
        request: &Publish,
        change: Change,
    ) -> Result<Box<RawValue>, Failure> {
        if request.version > 0 {
            return Err(Failure::Invalid("version is not supported"));
        }
        let data = match &request.data {
            Some(data) => Bytes::copy_from_slice(data.get().as_bytes()),
            None => match STANDARD.decode(&request.b64data) {
                Ok(data) if !data.is_empty() => data.into(),
                Ok(_) => return Err(Failure::Invalid("data is missing")),
                Err(_) => return Err(Failure::Invalid("b64data is not base64")),
            },
        };
        let options = PublishOptions {
            tags: request.tags.clone(),
            skip_history: request.skip_history,
            idempotency_key: request.idempotency_key.clone(),
        };
        let channel = self.check(channel, Operation::Publish)?;
        let position = self.publish_with(channel, data, options).await.map_err(|error| match error {
            PublishError::BadChannel | PublishError::BadKey => Failure::Refused(ErrorCode::LimitExceeded),
            PublishError::UnknownNamespace => Failure::Refused(ErrorCode::UnknownChannel),
            PublishError::Engine(error) => self.failed("publish", channel, &error),
        })?;
        change.log(channel, "", "");
        Ok(raw(&match position {
            Position { offset: 0, .. } => json!({}),
            Position { offset, epoch } => json!({ "offset": offset, "epoch": epoch }),
        }))
    }

    async fn control(
        &self,
        request: &User,
        action: Action,
        change: Change,
    ) -> Result<Box<RawValue>, Failure> {
        // Anonymous clients have no user, but each has its own id.
        if request.user.is_empty() {
            named(&request.client, "user and client are missing")?;
        }
        if !request.session.is_empty() {
            return Err(Failure::Invalid("session is not supported: name the client"));
        }
        let control = Control { user: request.user.clone(), client: request.client.clone(), action };
        self.0.start();
        let stored = self.0.engine().control(control).await;
        stored.map_err(|error| self.failed("pass on a command", "", &error))?;
        change.log(&request.channel, &request.user, &request.client);
        Ok(raw(&json!({})))
    }

    async fn api_presence(
        &self,
        method: &str,
        request: Channel,
        room: &Room,
    ) -> Result<Box<RawValue>, Failure> {
        let channel = self.check(&request.channel, Operation::Presence)?;
        if method == "presence_stats" {
            let counted = self.0.engine().presence_stats(channel).await;
            return Ok(raw(&counted.map_err(|error| self.failed("count clients", channel, &error))?));
        }
        let too_long = || Failure::TooLong("too many clients for a reply; presence_stats counts them");
        let mut lists = room.lists.lock().await;
        let clients = self.0.engine().presence(channel, lists.len_max).await;
        let clients = clients.map_err(|error| self.failed("list clients", channel, &error))?;
        let clients = clients.ok_or_else(too_long)?;
        let by_id: BTreeMap<&str, &ClientInfo> =
            clients.iter().map(|info| (&*info.client, &**info)).collect();
        lists.make("presence", &by_id).await.ok_or_else(too_long)
    }

    async fn api_history(&self, request: Channel, len_max: usize) -> Result<Box<RawValue>, Failure> {
        let channel = self.check(&request.channel, Operation::History)?;
        let since = request.since.map(|since| Position { offset: since.offset, epoch: since.epoch });
        let limit = Some(usize::try_from(request.limit).unwrap_or(usize::MAX));
        let query = HistoryQuery { since, limit, reverse: request.reverse, len_max: Some(len_max) };
        let history = self.0.history(channel, &query).await;
        let history = history.map_err(|error| self.failed("read a history", channel, &error))?;
        let history = history.ok_or(Failure::Refused(ErrorCode::NotAvailable))?;
        let wrong_epoch = |since: &Position| !since.is_in(&history.position.epoch);
        if query.since.as_ref().is_some_and(wrong_epoch) {
            return Err(Failure::Refused(ErrorCode::UnrecoverablePosition));
        }
        let Position { offset, epoch } = history.position;
        let publications = history.publications.iter().map(|one| Stored::from(&**one)).collect();
        Ok(raw(&StoredHistory { publications, offset, epoch }))
    }
}

/// The party that calls a method.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    Backend,
    /// An operator at this address, whose changes are logged.
    AdminPage(IpAddr),
}

/// A method that changes something.
#[derive(Clone, Copy)]
struct Change {
    sender: Sender,
    method: &'static str,
}

impl Change {
    /// The log has who changed what, but not payloads.
    fn log(self, channel: &str, user: &str, client: &str) {
        if let Self { sender: Sender::AdminPage(peer), method } = self {
            info!(%peer, method, channel, user, client, "the admin page has changed something");
        }
    }
}

/// Why a call has no result.
pub(crate) enum Failure {
    NoSuchMethod,
    Malformed(String),
    /// Error 107, with a text that names the field.
    Invalid(&'static str),
    /// Error 106, with a text that says how to ask for less.
    TooLong(&'static str),
    Refused(ErrorCode),
}

/// The room for what the commands of a request read, in its reply.
struct Room {
    /// Of each history.
    history_len_max: usize,
    /// Locked while a list is made, so that a parallel batch does not build all of its lists at once.
    lists: Mutex<Lists>,
}

/// The room for lists, in bytes.
struct Lists {
    len_max: usize,
}

impl Room {
    fn of(commands: usize) -> Self {
        let history_len_max = HISTORIES_LEN_MAX / commands.max(1);
        Self { history_len_max, lists: Lists { len_max: LISTS_LEN_MAX }.into() }
    }
}

impl Lists {
    /// An object with a list, if there is room for it.
    async fn make<T: Serialize>(
        &mut self,
        name: &str,
        list: &BTreeMap<impl Serialize, T>,
    ) -> Option<Box<RawValue>> {
        charge(list.len() / READ_PER_UNIT).await;
        let mut within = Vec::<u8>::new().limit(self.len_max).writer();
        serde_json::to_writer(&mut within, &BTreeMap::from([(name, list)])).ok()?;
        let bytes = within.into_inner().into_inner();
        self.len_max -= bytes.len();
        charge(bytes.len() / BYTES_PER_UNIT).await;
        RawValue::from_string(String::from_utf8(bytes).ok()?).ok()
    }
}

/// A channel in a list.
#[derive(Serialize)]
struct Listed {
    num_clients: usize,
}

fn parse<'a, T: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<T, Failure> {
    // A call without arguments may have no body.
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|error| Failure::Malformed(error.to_string()))
}

fn named<'a>(name: &'a str, missing: &'static str) -> Result<&'a str, Failure> {
    if name.is_empty() { Err(Failure::Invalid(missing)) } else { Ok(name) }
}

fn invalid(reason: &str) -> Value {
    json!({ "code": ErrorCode::BadRequest.code(), "message": format!("bad request: {reason}") })
}

fn too_long(reason: &str) -> Value {
    json!({ "code": ErrorCode::LimitExceeded.code(), "message": reason })
}

fn error(code: ErrorCode) -> Value {
    json!({ "code": code.code(), "message": code.message() })
}

/// As JSON text: payloads stay as they were published, byte for byte.
fn raw(value: &impl Serialize) -> Box<RawValue> {
    // Serialization fails only for maps whose keys are not strings; there are none.
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn refused(code: ErrorCode) -> Box<RawValue> {
    raw(&json!({ "error": error(code) }))
}

#[derive(Serialize)]
struct StoredHistory<'a> {
    publications: Vec<Stored<'a>>,
    offset: u64,
    epoch: String,
}

/// A publication of a history. Unlike for clients, line breaks of its payload are kept.
#[derive(Serialize)]
struct Stored<'a> {
    data: Data<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<&'a ClientInfo>,
    offset: u64,
    #[serde(skip_serializing_if = "HashMap::is_empty")]
    tags: &'a HashMap<String, String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Json(&'a RawValue),
    /// Bytes that are not JSON, in base64.
    Base64(String),
}

impl<'a> From<&'a Publication> for Stored<'a> {
    fn from(publication: &'a Publication) -> Self {
        let Publication { data, info, offset, tags, .. } = publication;
        let data = match serde_json::from_slice(data) {
            Ok(json) => Data::Json(json),
            Err(_) => Data::Base64(STANDARD.encode(data)),
        };
        Self { data, info: info.as_ref(), offset: *offset, tags }
    }
}

fn respond(name: &str, value: &RawValue) -> Response {
    Response::new(200).with_body("application/json", format!("{{\"{name}\":{value}}}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::client::Transport;
    use crate::config::HubConfig;
    use crate::protocol::Encoding;

    /// It counts how often it was serialized.
    struct Counted<'a>(&'a AtomicUsize);

    impl Serialize for Counted<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            serializer.serialize_str(&"x".repeat(5 << 20))
        }
    }

    #[tokio::test]
    async fn lists_of_a_batch_are_made_one_after_the_other() {
        let (room, made) = (Room::of(2), AtomicUsize::new(0));
        let list = BTreeMap::from([("a", Counted(&made))]);
        let mut lists = [0, 1].map(|_| Box::pin(async { room.lists.lock().await.make("x", &list).await }));
        std::future::poll_fn(|cx| {
            assert!(lists.iter_mut().all(|list| list.as_mut().poll(cx).is_pending()), "they are long");
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let [first, second] = lists;
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_some() && second.is_none());
    }

    #[tokio::test]
    async fn lists_in_a_reply_are_bounded() {
        const LEN: usize = 1 << 20;
        let config = HubConfig::from_toml("channel.presence = true").unwrap();
        let hub = Hub::builder().config(config).build().unwrap();
        let call = async |method: &str, body: Value| -> Option<Value> {
            let result = hub.call(method, body.to_string().as_bytes(), Sender::Backend).await;
            result.ok().map(|result| serde_json::from_str(result.get()).unwrap())
        };
        let conn_info = Bytes::from(format!("\"{}\"", "x".repeat(LEN)));
        let connection = hub.0.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        for number in 1..=8 {
            let info = ClientInfo {
                client: number.to_string(),
                conn_info: conn_info.clone(),
                ..ClientInfo::default()
            };
            hub.0.engine().add_presence("a", &info).await.unwrap();
            hub.0.channels.add(&format!("{number}{}", "x".repeat(LEN)), connection.clone(), false);
            for (method, body) in [("presence", json!({ "channel": "a" })), ("channels", json!({}))] {
                let listed = call(method, body).await.map(|result| result[method].as_object().unwrap().len());
                assert_eq!(listed, (number < 8).then_some(number), "{method}");
            }
        }
        assert_eq!(call("presence_stats", json!({ "channel": "a" })).await.unwrap()["num_clients"], 8);
        assert_eq!(
            call("channels", json!({ "pattern": "8*" })).await.unwrap()["channels"]
                .as_object()
                .unwrap()
                .len(),
            1
        );
        // The commands of a batch share it.
        for parallel in [false, true] {
            let command = json!({ "channels": { "pattern": "1*" } });
            let batch = json!({ "commands": vec![command; 9], "parallel": parallel });
            let replies = call("batch", batch).await.unwrap();
            let replies = replies["replies"].as_array().unwrap().iter();
            let codes: Vec<_> = replies.map(|reply| reply["error"]["code"].as_u64()).collect();
            assert_eq!(codes.iter().filter(|code| code.is_none()).count(), 7, "{codes:?}");
            assert_eq!(codes.iter().flatten().collect::<Vec<_>>(), [&106, &106]);
        }
    }
}
