//! How a session answers, and the turns that it takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::*;
use crate::client::Transport;
use crate::clock::Clock;
use crate::config::HubConfig;
use crate::engine::{Action, Control, Delivery as _};
use crate::history::HistoryQuery;
use crate::hooks::SubscribeGrant;
use crate::hub::Hub;
use crate::protocol::ClientInfo;
use crate::token::TokenClaims;

#[test]
fn publications_are_paced_after_a_burst() {
    const QUEUE: usize = 1 << 20;
    let options = |publications_per_s_max, publication_bytes_per_s_max| ChannelOptions {
        publications_per_s_max,
        publication_bytes_per_s_max,
        ..ChannelOptions::default()
    };
    let second = Duration::from_secs(1);
    // A burst, and one publication that begins within it.
    for (options, queue, len, burst) in [
        (options(10, 0), QUEUE, 1_000_000, 10),
        (options(0, 1_000), QUEUE, 100, 10),
        (options(100, 1_000), QUEUE, 100, 10),
        (options(0, 1_000), 400, 100, 2),
    ] {
        let mut pace = Pace::default();
        let waits: Vec<_> = (0..13).map(|_| pace.delay(&options, queue, len, second)).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), burst + 1, "{waits:?}");
        assert_eq!(waits[burst + 1], second / 10);
        // Later it is as before.
        assert_eq!(pace.delay(&options, queue, len, 100 * second), Duration::ZERO);
    }
    let mut pace = Pace::default();
    assert!((0..1_000).all(|_| pace.delay(&options(0, 0), QUEUE, 1_000_000, second).is_zero()));
}

/// How many turns a session takes for a message.
async fn turns(session: &mut Session, message: &str) -> usize {
    tokio::task::yield_now().await;
    let mut handled = std::pin::pin!(session.handle_message(message.into()));
    let mut turns = 0;
    poll_fn(|cx| {
        turns += 1;
        handled.as_mut().poll(cx)
    })
    .await;
    turns
}

async fn connected(node: &Arc<Node>) -> Session {
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let mut session = Session::new(node.clone(), client, Headers::NONE);
    session.handle_message("{\"id\":1,\"connect\":{}}".into()).await;
    session
}

#[tokio::test]
async fn the_turns_for_a_message_are_those_of_its_commands() {
    const COUNT: usize = 200;
    let config = "[client]\nanonymous = true\n[channel]\nsubscribe = \"anyone\"\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let token = |algorithm: &str| {
        let header = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"{algorithm}\"}}"));
        format!("\"token\":\"{header}.e30.AAAA\"")
    };
    let [cheap, costly] = ["HS256", "ES384"].map(token);
    for (command, least, most) in [
        ("\"ping\":{}".to_owned(), 2, 4),
        (format!("\"refresh\":{{{cheap}}}"), 2, 8),
        (format!("\"refresh\":{{{costly}}}"), COUNT, 2 * COUNT),
        (format!("\"sub_refresh\":{{\"channel\":\"a\",{costly}}}"), COUNT, 2 * COUNT),
        (format!("\"subscribe\":{{\"channel\":\"a\",{costly}}}"), COUNT, 2 * COUNT),
        (format!("\"rpc\":{{\"data\":\"{}\"}}", "x".repeat(8 << 10)), 4, 12),
    ] {
        let mut session = connected(&hub.0).await;
        let commands = (0..COUNT).map(|number| format!("{{\"id\":{},{command}}}", number + 2));
        let turns = turns(&mut session, &commands.collect::<Vec<_>>().join("\n")).await;
        assert!((least..=most).contains(&turns), "{}: {turns}", &command[..20.min(command.len())]);
        assert!(!session.client.outbox.has_ended());
    }
}

#[tokio::test]
async fn a_join_or_a_leave_in_a_large_room_takes_more_turns() {
    let config = "[client]\nanonymous = true\n[channel]\nsubscribe = \"anyone\"\n\
                  join_leave = true\nforce_push_join_leave = true\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let node = &hub.0;
    let member = connected(node).await.client;
    (0..2_000).for_each(|_| drop(node.channels.add("large", member.clone(), false)));
    let mut session = connected(node).await;
    for command in ["subscribe", "unsubscribe"] {
        let mut turns_in = async |channel: &str| {
            let message = format!("{{\"id\":2,\"{command}\":{{\"channel\":\"{channel}\"}}}}");
            turns(&mut session, &message).await
        };
        let [small, large] = [turns_in("small").await, turns_in("large").await];
        assert!(large >= small + 2, "{command}: {small}, {large}");
    }
}

#[tokio::test]
async fn a_large_read_takes_more_than_one_turn() {
    let config = HubConfig::from_toml(
        "[client]\nanonymous = true\n[channel]\nsubscribe = \"anyone\"\npresence = true\n\
         presence_access = \"anyone\"\nhistory_access = \"anyone\"\nhistory_size = 10\nhistory_ttl = \"1h\"\n",
    );
    let hub = Hub::builder().config(config.unwrap()).build().unwrap();
    let node = hub.0.clone();
    for number in 0..20_000 {
        let info = ClientInfo { client: number.to_string(), ..ClientInfo::default() };
        node.engine().add_presence("large", &info).await.unwrap();
    }
    for _ in 0..7 {
        hub.publish("large", vec![b'1'; 1 << 20]).await.unwrap();
    }
    let history = r#"{"id":2,"history":{"channel":"CHANNEL","limit":-1}}"#;
    let recover = r#"{"id":2,"subscribe":{"channel":"CHANNEL","recover":true}}"#;
    let presence = r#"{"id":2,"presence":{"channel":"CHANNEL"}}"#;
    let stats = r#"{"id":2,"presence_stats":{"channel":"CHANNEL"}}"#;
    for command in [presence, stats, history, recover] {
        for (channel, is_large) in [("small", false), ("large", true)] {
            let mut session = connected(&node).await;
            let turns = turns(&mut session, &command.replace("CHANNEL", channel)).await;
            assert_eq!(turns > 1, is_large, "{command} {channel}: {turns}");
            assert!(!session.client.outbox.has_ended());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_does_not_extend_what_a_callback_has_granted() {
    let config = HubConfig::from_toml("[token]\nhmac_secret = \"secret\"\n").unwrap();
    let hour = Duration::from_secs(3_600);
    // By the callback and by the tokens, in hours from now; and when the connection expires after each.
    for (granted, first, second, expected) in [
        (Some(1), Some(Some(24)), Some(24), [Some(1), Some(1)]),
        (Some(1), Some(None), Some(24), [Some(1), Some(1)]),
        // Without a token.
        (Some(1), None, Some(24), [Some(1), Some(1)]),
        (Some(1), None, None, [Some(1), Some(1)]),
        (None, None, Some(24), [None, Some(24)]),
        // The expiry of the token, or a later one.
        (Some(24), Some(Some(24)), Some(48), [Some(24), Some(48)]),
        (Some(48), Some(Some(24)), Some(48), [Some(24), Some(48)]),
        (None, Some(Some(24)), Some(48), [Some(24), Some(48)]),
        (None, Some(None), Some(48), [None, Some(48)]),
    ] {
        let start = Clock::new().now();
        let at =
            |hours: Option<u32>| hours.map(|hours| Duration::from_secs((start + hour * hours).as_secs()));
        let sign = |exp: Option<u32>| {
            let exp = at(exp).map(|at| at.as_secs());
            config.sign_token(&TokenClaims { user: "7".into(), exp, ..TokenClaims::default() }).unwrap()
        };
        let granted = at(granted);
        let hub = Hub::builder().config(config.clone()).on_connect(move |_| async move {
            Ok(ConnectGrant { user: "7".into(), expires_at: granted, ..ConnectGrant::default() })
        });
        let node = hub.build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let token = first.map(sign).unwrap_or_default();
        let connect = format!("{{\"id\":1,\"connect\":{{\"token\":\"{token}\"}}}}");
        session.handle_message(connect.as_str().into()).await;
        assert_eq!(client.expires_at(), at(expected[0]), "{expected:?}");
        let refresh = format!("{{\"id\":2,\"refresh\":{{\"token\":\"{}\"}}}}", sign(second));
        session.handle_message(refresh.as_str().into()).await;
        assert_eq!(client.expires_at(), at(expected[1]), "{expected:?}");
        // The server may extend it, and tokens after that.
        let action = Action::Refresh { expire_at: at(Some(30)).map(|at| at.as_secs()) };
        node.deliver_control(&Control { user: "7".into(), client: String::new(), action });
        assert_eq!(client.expires_at(), at(Some(30)), "{expected:?}");
        session.handle_message(refresh.as_str().into()).await;
        assert_eq!(client.expires_at(), at(second), "{expected:?}");
    }
}

/// Such as one that rounds up.
#[tokio::test(start_paused = true)]
async fn a_callback_that_grants_a_part_of_the_leeway_cuts_nothing() {
    let config = HubConfig::from_toml("[token]\nhmac_secret = \"secret\"\nleeway = \"1m\"\n").unwrap();
    let [now, leeway] = [Clock::new().now().as_secs(), 60];
    let sign = |exp| {
        config
            .sign_token(&TokenClaims { user: "7".into(), exp: Some(exp), ..TokenClaims::default() })
            .unwrap()
    };
    let [first, second] = [now + 3_600, now + 7_200];
    for (granted, expected) in
        [(first - 1, first - 1), (first, second + leeway), (first + 2, second + leeway)]
    {
        let hub = Hub::builder().config(config.clone()).on_connect(move |_| async move {
            let expires_at = Some(Duration::from_secs(granted));
            Ok(ConnectGrant { user: "7".into(), expires_at, ..ConnectGrant::default() })
        });
        let node = hub.build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let connect = format!("{{\"id\":1,\"connect\":{{\"token\":\"{}\"}}}}", sign(first));
        session.handle_message(connect.as_str().into()).await;
        assert_eq!(client.expires_at(), Some(Duration::from_secs(granted)));
        let refresh = format!("{{\"id\":2,\"refresh\":{{\"token\":\"{}\"}}}}", sign(second));
        session.handle_message(refresh.as_str().into()).await;
        assert_eq!(client.expires_at(), Some(Duration::from_secs(expected)), "{granted}");
    }
}

/// A message of 64 KiB is not several megabytes of subscriptions while a token is verified.
#[tokio::test]
async fn a_connect_command_is_not_much_longer_in_memory() {
    for (count, expected) in [(100, None), (7_000, Some(Disconnect::BadRequest))] {
        let subs: String = (0..count).map(|n| format!(r#","{n:x}":{{}}"#)).collect();
        let request = format!(r#"{{"subs":{{"x":{{}}{subs}}}}}"#);
        let command = format!(r#"{{"id":1,"connect":{request}}}"#);
        let mut protobuf = Vec::new();
        let parsed: Command = serde_json::from_str(&command).unwrap();
        prost::Message::encode_length_delimited(&parsed, &mut protobuf).unwrap();
        for (transport, message) in [
            (Transport::WebSocket(Encoding::Json), OwnedMessage::from(command.as_str())),
            (Transport::WebSocket(Encoding::Protobuf), OwnedMessage::Binary(protobuf.clone().into())),
            (Transport::UniWebSocket, OwnedMessage::from(request.as_str())),
        ] {
            let config = HubConfig::from_toml("client.anonymous = true\n[channel]\nsubscribe = \"anyone\"\n");
            let node = Hub::builder().config(config.unwrap()).build().unwrap().0;
            let client = node.accept(transport, None, None).unwrap();
            let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
            session.handle_message(message).await;
            assert_eq!(client.outbox.ended(), expected, "{count}, {transport:?}");
        }
    }
}

/// As a history does not, the list of a channel's clients makes no reply of any length.
#[tokio::test]
async fn a_list_of_clients_fits_into_a_reply() {
    let config = HubConfig::from_toml(
        "client.anonymous = true\nclient.queue_len_max = \"1K\"\n[channel]\npresence = true\npresence_access = \"anyone\"\n",
    );
    let hub = Hub::builder().config(config.unwrap()).build().unwrap();
    let node = &hub.0;
    // Each takes 512 bytes: 16 of them fit into 8 KiB.
    for (count, fits) in [(15, true), (16, true), (17, false)] {
        for n in 0..count {
            let mut info = ClientInfo { client: format!("{n:02}"), ..ClientInfo::default() };
            info.conn_info = format!("{:?}", "x".repeat(512 - 2 - 4 - 3 - 2)).into();
            assert_eq!(2 + prost::Message::encoded_len(&info), 512);
            node.engine().add_presence("a", &info).await.unwrap();
        }
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let commands = r#"{"id":1,"connect":{}}
            {"id":2,"presence_stats":{"channel":"a"}}
            {"id":3,"presence":{"channel":"a"}}"#;
        session.handle_message(commands.into()).await;
        let replies = sent(&client);
        let listed = replies[2]["presence"]["presence"].as_object().map(serde_json::Map::len);
        assert_eq!(listed, fits.then_some(count), "{replies:?}");
        if !fits {
            assert_eq!(replies[2]["error"]["code"], 106);
            assert!(replies[2]["error"]["message"].as_str().unwrap().contains("presence_stats"));
        }
        assert_eq!(replies[1]["presence_stats"]["num_clients"], count);
    }
}

/// Counts how often it is dropped.
struct Foreign(Arc<AtomicUsize>);

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        b"7"
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The hub drops the bytes that it keeps while it holds its locks, so it keeps copies of its own.
#[tokio::test]
async fn the_hub_keeps_no_bytes_of_the_application() {
    let config = HubConfig::from_toml(
        "[channel]\npresence = true\njoin_leave = true\nhistory_size = 10\nhistory_ttl = \"1h\"\n",
    );
    let dropped = Arc::<AtomicUsize>::default();
    let foreign = {
        let dropped = dropped.clone();
        move || Bytes::from_owner(Foreign(dropped.clone()))
    };
    let (connect, subscribe, publish) = (foreign.clone(), foreign.clone(), foreign.clone());
    let hub = Hub::builder()
        .config(config.unwrap())
        .on_connect(move |_| {
            let (info, data) = (connect(), connect());
            async { Ok(ConnectGrant { user: "7".into(), info, data, ..ConnectGrant::default() }) }
        })
        .on_subscribe(move |_| {
            let (info, data) = (subscribe(), subscribe());
            async { Ok(SubscribeGrant { info, data, expires_at: None }) }
        })
        .on_publish(move |_| std::future::ready(Ok(publish())));
    let hub = hub.build().unwrap();
    let node = &hub.0;
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
    for (command, expected) in [
        ("\"connect\":{}", 2),
        ("\"subscribe\":{\"channel\":\"a\"}", 4),
        ("\"publish\":{\"channel\":\"a\",\"data\":1}", 5),
    ] {
        session.handle_message(format!("{{\"id\":1,{command}}}").as_str().into()).await;
        assert_eq!(dropped.load(Ordering::Relaxed), expected, "{command}");
    }
    hub.publish("a", foreign()).await.unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 6);
    let history = node.history("a", &HistoryQuery::default()).await.unwrap().unwrap();
    assert_eq!(history.publications.len(), 2);
    assert_eq!(node.engine().presence("a", usize::MAX).await.unwrap().unwrap()[0].chan_info, "7");
}

/// Takes the messages in a client's outbox.
fn sent(client: &Client) -> Vec<serde_json::Value> {
    let mut messages = Vec::new();
    let _ = client.outbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut messages);
    messages.iter().map(|message| serde_json::from_slice(message.as_bytes()).unwrap()).collect()
}

/// Until all other tasks wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A backend may send them before it answers who the client is.
#[tokio::test]
async fn a_client_that_has_not_connected_receives_no_commands_of_the_server_api() {
    let config = HubConfig::from_toml("[client]\nanonymous = true\n").unwrap();
    let node = Hub::builder().config(config).build().unwrap().0;
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
    for action in [Action::Subscribe { channel: "a".into() }, Action::Refresh { expire_at: Some(1) }] {
        let client = client.id.to_string();
        node.deliver_control(&Control { user: String::new(), client, action });
    }
    settle().await;
    assert!(sent(&client).is_empty());
    let granted = subscribe::Request::from_server("a");
    let refused = subscribe::subscribe(&node, &client, granted).await.map(drop);
    assert_eq!(refused.unwrap_err().code, ErrorCode::PermissionDenied.code());
    session.handle_message("{\"id\":1,\"connect\":{}}".into()).await;
    assert!(!client.is_subscribed("a"));
    assert_eq!(client.expires_at(), None);
}

/// The engine is slow.
#[tokio::test]
async fn commands_of_the_server_api_follow_the_answer_to_connect() {
    const CHANNELS: usize = 16;
    let expire_at = Some(Clock::new().system_now().as_secs() + 3_600);
    let hub = Hub::builder().on_connect(|_| async {
        let channels = (0..CHANNELS).map(|number| number.to_string()).collect();
        Ok(ConnectGrant { user: "7".into(), channels, ..ConnectGrant::default() })
    });
    let node = hub.build().unwrap().0;
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
    let control = |action| {
        node.deliver_control(&Control { user: "7".into(), client: String::new(), action });
    };
    {
        let mut connecting = std::pin::pin!(session.handle_message("{\"id\":1,\"connect\":{}}".into()));
        let begun = poll_fn(|cx| Poll::Ready(connecting.as_mut().poll(cx))).await;
        assert!(begun.is_pending() && client.has_connected());
        control(Action::Subscribe { channel: "late".into() });
        control(Action::Unsubscribe { channel: "0".into() });
        control(Action::Refresh { expire_at });
        settle().await;
        connecting.await;
    }
    settle().await;
    let messages = sent(&client);
    let connected = &messages[0]["connect"]["subs"];
    assert_eq!(connected.as_object().map(serde_json::Map::len), Some(CHANNELS), "{messages:?}");
    let is_pushed = |channel: &str, kind: &str| {
        messages[1..].iter().any(|one| one["push"]["channel"] == channel && one["push"][kind].is_object())
    };
    assert!(is_pushed("late", "subscribe") && is_pushed("0", "unsubscribe"), "{messages:?}");
    assert!(messages[1..].iter().any(|one| one["push"]["refresh"].is_object()), "{messages:?}");
    assert_eq!(["0", "1", "late"].map(|one| client.is_subscribed(one)), [false, true, true]);
    assert!(client.expires_at().is_some());
    // Nothing waits any more.
    control(Action::Unsubscribe { channel: "1".into() });
    assert!(!client.is_subscribed("1"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_this_process_ends_no_connection() {
    let hub = Hub::builder().config(HubConfig::from_toml("[client]\nanonymous = true\n").unwrap());
    let node = hub.build().unwrap().0;
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
    let pause = Duration::from_secs(3_600);
    let timeout = async |session: &mut Session, pause| {
        tokio::time::sleep_until(node.clock.instant(session.kept.poll_timeout(&node, &client, true))).await;
        tokio::time::advance(pause).await;
        session.kept.handle_timeout(&node, &client, true);
    };
    let has_ended = || client.outbox.has_ended();
    timeout(&mut session, pause).await;
    assert!(!has_ended());
    session.handle_message("{\"id\":1,\"connect\":{}}".into()).await;
    timeout(&mut session, Duration::ZERO).await;
    assert!(matches!(session.kept.state, State::Connected { ping: Ping::Missing(_) }));
    timeout(&mut session, pause).await;
    assert!(!has_ended());
    // A message that arrived during the pause is handled after the timeout.
    session.handle_message("{}".into()).await;
    let pinged = node.clock.now() + session.node.settings().config.client.ping_interval;
    timeout(&mut session, Duration::ZERO).await;
    // No pong.
    while !has_ended() {
        timeout(&mut session, Duration::ZERO).await;
    }
    assert_eq!(node.clock.now() - pinged, node.settings().config.client.pong_timeout);
}

/// Others verify tokens while presence is written, which an engine may take any time for.
#[tokio::test]
async fn no_turn_to_verify_is_held_while_a_command_waits() {
    const COUNT: usize = 100;
    let [private, public] =
        [include_str!("../../tests/keys/ecdsa.pem"), include_str!("../../tests/keys/ecdsa.pub.pem")];
    let config = format!(
        "token.ecdsa_public_key = \"\"\"{public}\"\"\"\n[channel]\nsubscribe = \"client\"\npresence = true\n"
    );
    let hub = Hub::builder().config(HubConfig::from_toml(&config).unwrap()).build().unwrap();
    let node = &hub.0;
    let key = jsonwebtoken::EncodingKey::from_ec_pem(private.as_bytes()).unwrap();
    let token = |info: usize, channel: Option<&str>| {
        let mut claims = serde_json::json!({ "sub": "7", "exp": 4_000_000_000_u64, "info": info });
        channel.into_iter().for_each(|channel| claims["channel"] = channel.into());
        jsonwebtoken::encode(&jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256), &claims, &key)
            .unwrap()
    };
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let mut session = Session::new(node.clone(), client, Headers::NONE);
    session
        .handle_message(format!("{{\"id\":1,\"connect\":{{\"token\":\"{}\"}}}}", token(0, None)).into())
        .await;
    let subscribe = (0..COUNT).map(|n| format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"{n}\"}}}}"));
    session.handle_message(subscribe.collect::<Vec<_>>().join("\n").into()).await;
    assert_eq!(session.client.listed_in().len(), COUNT);
    let renewals = (0..COUNT).map(|n| match n % 2 {
        0 => format!("{{\"id\":3,\"refresh\":{{\"token\":\"{}\"}}}}", token(n, None)),
        _ => {
            let token = token(n, Some("0"));
            format!("{{\"id\":3,\"sub_refresh\":{{\"channel\":\"0\",\"token\":\"{token}\"}}}}")
        }
    });
    let renewals = renewals.collect::<Vec<_>>().join("\n");
    let (settings, client) = (node.settings(), session.client.clone());
    let all = settings.verifier.turns();
    let mut handled = std::pin::pin!(session.handle_message(renewals.as_str().into()));
    poll_fn(|cx| {
        let polled = handled.as_mut().poll(cx);
        assert_eq!(settings.verifier.turns(), all);
        polled
    })
    .await;
    assert!(!client.outbox.has_ended());
    let newest = (COUNT - 2).to_string();
    assert_eq!(client.info(Bytes::new()).conn_info, newest);
    // Presence has it later, in each channel.
    for channel in client.listed_in() {
        while node.engine().presence(&channel, usize::MAX).await.unwrap().unwrap()[0].conn_info != newest {
            tokio::task::yield_now().await;
        }
    }
}

/// Nothing was known of the client until then.
#[tokio::test]
async fn a_renewal_tells_who_an_anonymous_client_is() {
    let config = "token.hmac_secret = \"secret\"\n[client]\nanonymous = true\n";
    let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
    let mut session = connected(&hub.0).await;
    let claims = serde_json::json!({ "exp": 4_000_000_000_u64, "info": 1, "meta": 2 });
    let key = jsonwebtoken::EncodingKey::from_secret(b"secret");
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
    session.handle_message(format!("{{\"id\":2,\"refresh\":{{\"token\":\"{token}\"}}}}").into()).await;
    assert!(!session.client.outbox.has_ended());
    assert_eq!(session.client.info(Bytes::new()).conn_info, "1");
    assert!(session.client.meta().is_some());
    assert_eq!(session.client.user(), "");
}

/// They are kept as long as the connection.
#[tokio::test]
async fn headers_of_a_connect_command_are_bounded() {
    const LEN_MAX: usize = 16 << 10;
    let config = "client.anonymous = true\n[rpc]\nurl = \"http://a/\"\nemulated_headers = [\"a\", \"b\"]\n";
    let node = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap().0;
    for (len, fits) in [(LEN_MAX - 1, true), (LEN_MAX, true), (LEN_MAX + 1, false)] {
        let value = "x".repeat(len - 3);
        // Others are not kept.
        let headers = serde_json::json!({ "a": value, "B": "y", "c": value });
        let request = serde_json::json!({ "headers": headers });
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let command = serde_json::json!({ "id": 1, "connect": request }).to_string();
        session.handle_message(command.as_str().into()).await;
        let reply = sent(&client).remove(0);
        assert_eq!(reply["connect"].is_object(), fits, "{len}: {reply}");
        assert_eq!(session.headers().emulated.len(), if fits { 2 } else { 0 });
        if !fits {
            assert_eq!(reply["error"]["code"], ErrorCode::BadRequest.code());
            assert!(reply["error"]["message"].as_str().unwrap().contains("16 KiB"), "{reply}");
        }
        let client = node.accept(Transport::UniWebSocket, None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        session.handle_message(request.to_string().as_str().into()).await;
        assert_eq!(client.outbox.has_ended(), !fits, "{len}");
    }
}

/// Its session may never be idle, which is when deadlines are looked at.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_refused_again_and_again_becomes_stale() {
    let config = HubConfig::from_toml("token.hmac_secret = \"secret\"\n").unwrap();
    let claims = TokenClaims { user: "7".into(), exp: Some(1), ..TokenClaims::default() };
    let connect = serde_json::json!({ "id": 1, "connect": { "token": config.sign_token(&claims).unwrap() } })
        .to_string();
    let node = Hub::builder().config(config).build().unwrap().0;
    let stale_after = node.settings().config.client.stale_after;
    let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
    let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
    for quarter in 0..=4 {
        assert_eq!(client.outbox.ended(), None, "{quarter}");
        session.handle_message(connect.as_str().into()).await;
        tokio::time::advance(stale_after / 4 + Duration::from_millis(1)).await;
    }
    assert_eq!(client.outbox.ended(), Some(Disconnect::Stale));
}

#[tokio::test]
async fn the_end_of_a_connection_that_was_refused_is_not_reported() {
    let config = HubConfig::from_toml("client.connections_per_user_max = 1\n").unwrap();
    let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let hub = Hub::builder()
        .config(config)
        .on_connect(|_| async { Ok(ConnectGrant { user: "7".into(), ..ConnectGrant::default() }) })
        .on_disconnect(move |event| {
            report.send(event.client).unwrap();
            async {}
        });
    let node = hub.build().unwrap().0;
    let (first, second) = (connected(&node).await.client, connected(&node).await.client);
    assert_eq!([&first, &second].map(|one| one.outbox.ended()), [None, Some(Disconnect::ConnectionLimit)]);
    for client in [&second, &first] {
        node.forget(client, Disconnect::ConnectionLimit).await;
    }
    assert_eq!(reported.try_recv(), Ok(first.id.to_string()));
    assert!(reported.try_recv().is_err());
}
