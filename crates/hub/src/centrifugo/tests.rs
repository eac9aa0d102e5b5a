use super::*;
use crate::{Access, ProxyChoice};

/// `centrifugo defaultconfig` writes all of them.
#[test]
fn defaults_change_nothing() {
    let converted = convert_centrifugo(
        r##"{
        "client": {
            "connection_limit": 0,
            "subscription_token": { "hmac_secret_key": "other" },
            "proxy": { "connect": { "endpoint": "http://b/", "timeout": "1s" } }
        },
        "rpc": {
            "proxy": { "endpoint": "http://b/", "timeout": "1s" },
            "without_namespace": { "proxy_enabled": false, "proxy_name": "default" }
        },
        "channel": {
            "without_namespace": { "force_recovery_mode": "", "channel_regex": "", "allowed_delta_types": null },
            "private_prefix": "$", "namespace_boundary": ":", "user_boundary": "#", "user_separator": ","
        },
        "sse": { "enabled": true }, "http_stream": { "enabled": true }, "uni_sse": { "enabled": true },
        "uni_http_stream": { "enabled": true }, "uni_websocket": { "enabled": true },
        "engine": { "redis": { "prefix": "centrifugo" } }, "broker": { "nats": { "prefix": "centrifugo" } }
    }"##,
    );
    let Converted { toml, unknown } = converted.unwrap();
    assert_eq!((toml.trim(), &*unknown), ("[channel]", &[][..]));
}

#[test]
fn converts_what_has_a_counterpart_and_lists_the_rest() {
    let converted = convert_centrifugo(
        r#"{
        "client": {
            "token": { "hmac_secret_key": "a \"secret\"", "user_id_claim": "id" },
            "subscription_token": { "enabled": false, "hmac_secret_key": "other" },
            "allowed_origins": ["https://a.example"],
            "subscribe_to_user_personal_channel": { "enabled": true, "personal_channel_namespace": "chat", "single_connection": true },
            "proxy": { "connect": { "enabled": true, "endpoint": "http://b/", "timeout": "2s", "http_headers": ["Cookie"] } }
        },
        "http_api": { "key": "k" },
        "admin": { "enabled": true, "password": "x" },
        "rpc": {
            "proxy": { "endpoint": "http://d/" },
            "without_namespace": { "proxy_enabled": true, "proxy_name": "other" }
        },
        "channel": {
            "history_meta_ttl": "720h",
            "without_namespace": { "presence": true },
            "proxy": { "subscribe": { "endpoint": "http://c/", "http": { "static_headers": { "X-Secret": "s" } } } },
            "namespaces": [
                { "name": "chat", "history_size": 10, "history_ttl": "300s", "history_meta_ttl": "24h", "allow_subscribe_for_client": true,
                  "allow_publish_for_subscriber": true, "allow_history_for_client": true, "allow_history_for_anonymous": true,
                  "allow_presence_for_anonymous": true, "subscribe_proxy_enabled": true, "subscribe_proxy_name": "default",
                  "publish_proxy_name": "other", "delta_publish": true, "allow_recovery": true }
            ]
        }
    }"#,
    )
    .unwrap();
    let config =
        HubConfig::from_toml(&converted.toml).unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
    assert_eq!(config.token.hmac_secret.as_deref(), Some("a \"secret\""));
    assert!(config.token.subscription.is_none() && config.channel.presence);
    assert_eq!(config.api.key.as_deref(), Some("k"));
    assert_eq!(config.proxy.connect.url.as_deref(), Some("http://b/"));
    assert_eq!(config.proxy.connect.forward_headers, ["Cookie"]);
    assert_eq!(config.proxy.subscribe.headers["X-Secret"], "s");
    assert_eq!(config.rpc.url, None, "another endpoint answers calls");
    assert!(config.client.personal_channel && config.client.personal_channel_namespace == "chat");
    let chat = &config.namespaces["chat"];
    assert_eq!((chat.subscribe, chat.publish), (Access::Client, Access::SubscribedClient));
    assert_eq!((chat.history_access, chat.presence_access), (Access::Anyone, Access::Token));
    assert!(chat.subscribe_proxy == ProxyChoice::On && chat.history_size == 10);
    let hours = |time: std::time::Duration| time.as_secs() / 3600;
    assert_eq!((hours(config.history.meta_ttl), hours(chat.history_meta_ttl)), (720, 24));
    let expected = [
        "admin.enabled",
        "admin.password",
        "channel.namespaces.chat.allow_presence_for_anonymous",
        "channel.namespaces.chat.delta_publish",
        "client.subscribe_to_user_personal_channel.single_connection",
        "client.token.user_id_claim",
        "rpc.without_namespace.proxy_name",
    ];
    assert_eq!(converted.unknown, expected);
    assert!(convert_centrifugo("[]").is_err());
}

/// With the conditions of Centrifugo's handlers, in the same order.
#[test]
fn each_combination_of_flags_grants_the_same() {
    for flags in 0..8 {
        let is_on = |bit: u32| flags >> bit & 1 == 1;
        let (client, subscriber, anonymous) = (is_on(0), is_on(1), is_on(2));
        let json = format!(
            r#"{{ "channel": {{ "without_namespace": {{ "allow_publish_for_client": {client},
                "allow_publish_for_subscriber": {subscriber}, "allow_publish_for_anonymous": {anonymous} }} }} }}"#
        );
        let converted = convert_centrifugo(&json).unwrap();
        let access = HubConfig::from_toml(&converted.toml).unwrap().channel.publish;
        for (has_user, is_subscribed) in [(false, false), (false, true), (true, false), (true, true)] {
            let there = (client || subscriber && is_subscribed) && (has_user || anonymous);
            let here = match access {
                Access::Token => false,
                Access::SubscribedClient => has_user && is_subscribed,
                Access::Subscriber => is_subscribed,
                Access::Client => has_user,
                Access::Anyone => true,
            };
            assert_eq!(here, there, "{json} {has_user} {is_subscribed}");
        }
        let is_listed = anonymous && !client && !subscriber;
        assert_eq!(!converted.unknown.is_empty(), is_listed, "{json}");
    }
}

#[test]
fn no_other_endpoint_decides_than_the_one_with_the_name() {
    let converted = convert_centrifugo(
        r#"{ "channel": {
            "proxy": { "subscribe": { "endpoint": "http://b/" } },
            "namespaces": [
                { "name": "a", "subscribe_proxy_enabled": true, "subscribe_proxy_name": "other", "allow_subscribe_for_client": true },
                { "name": "b", "subscribe_proxy_enabled": true },
                { "name": "c", "subscribe_proxy_name": "other", "allow_subscribe_for_client": true },
                { "name": "d", "subscribe_stream_proxy_enabled": true, "allow_subscribe_for_client": true }
            ]
        } }"#,
    )
    .unwrap();
    let config = HubConfig::from_toml(&converted.toml).unwrap();
    let decided = ["a", "b", "c", "d"]
        .map(|name| (config.namespaces[name].subscribe, config.namespaces[name].subscribe_proxy.clone()));
    let (off, on) = (ProxyChoice::Off, ProxyChoice::On);
    let closed = (Access::Token, off.clone());
    assert_eq!(decided, [closed.clone(), (Access::Token, on), (Access::Client, off), closed]);
    let expected = ["a.subscribe_proxy_name", "d.subscribe_stream_proxy_enabled"];
    assert_eq!(converted.unknown, expected.map(|path| format!("channel.namespaces.{path}")));
}

/// With the configuration of Centrifugo's documentation of them.
#[test]
fn endpoints_with_names_are_converted() {
    let converted = convert_centrifugo(
        r#"{
        "proxies": [
            { "name": "subscribe1", "endpoint": "http://localhost:3001/centrifugo/subscribe" },
            { "name": "publish1", "endpoint": "http://localhost:3001/centrifugo/publish", "timeout": "1s", "http_headers": ["Cookie"],
              "include_connection_meta": true, "binary_encoding": true,
              "http": { "static_headers": { "X-Custom-Header": "custom value" } } },
            { "name": "subscribe2", "endpoint": "http://localhost:3002/centrifugo/subscribe" },
            { "name": "publish2", "endpoint": "grpc://localhost:3002" },
            { "name": "rpc1", "endpoint": "http://localhost:3001/centrifugo/rpc" },
            { "name": "rpc2", "endpoint": "grpc://localhost:3002" },
            { "name": "unused", "endpoint": "http://localhost:3003/", "include_connection_meta": false }
        ],
        "channel": {
            "proxy": { "publish": { "endpoint": "http://localhost:3000/" }, "sub_refresh": { "endpoint": "http://localhost:3000/" } },
            "without_namespace": { "sub_refresh_proxy_enabled": true, "sub_refresh_proxy_name": "default" },
            "namespaces": [
                { "name": "ns1", "subscribe_proxy_enabled": true, "subscribe_proxy_name": "subscribe1",
                  "publish_proxy_enabled": true, "publish_proxy_name": "publish1", "allow_publish_for_client": true },
                { "name": "ns2", "subscribe_proxy_enabled": true, "subscribe_proxy_name": "subscribe2",
                  "publish_proxy_enabled": true, "publish_proxy_name": "publish2", "allow_publish_for_client": true },
                { "name": "ns3", "publish_proxy_enabled": true, "sub_refresh_proxy_enabled": "yes" }
            ]
        },
        "rpc": { "namespaces": [
            { "name": "ns1", "proxy_enabled": true, "proxy_name": "rpc1" },
            { "name": "ns2", "proxy_enabled": true, "proxy_name": "rpc2" }
        ] }
    }"#,
    )
    .unwrap();
    let config =
        HubConfig::from_toml(&converted.toml).unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
    let named = |name: &str| ProxyChoice::Named(name.into());
    let [ns1, ns2, ns3] = ["ns1", "ns2", "ns3"].map(|name| config.namespaces[name].clone());
    assert_eq!([ns1.subscribe_proxy, ns1.publish_proxy], [named("subscribe1"), named("publish1")]);
    assert_eq!([ns2.subscribe_proxy, ns2.publish_proxy], [named("subscribe2"), ProxyChoice::Off]);
    assert_eq!((ns2.publish, ns3.publish_proxy), (Access::Token, ProxyChoice::On));
    assert_eq!(config.channel.sub_refresh_proxy, ProxyChoice::On);
    let mut names: Vec<_> = config.endpoints.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["publish1", "rpc1", "subscribe1", "subscribe2"]);
    let publish1 = &config.endpoints["publish1"];
    assert_eq!(publish1.url.as_deref(), Some("http://localhost:3001/centrifugo/publish"));
    assert_eq!((publish1.timeout.as_secs(), &*publish1.forward_headers), (1, &["Cookie".to_owned()][..]));
    assert_eq!(publish1.headers["X-Custom-Header"], "custom value");
    assert_eq!(config.rpc_namespaces, [("ns1".to_owned(), named("rpc1"))].into());
    let expected = [
        "channel.namespaces.ns2.publish_proxy_name",
        "channel.namespaces.ns3.sub_refresh_proxy_enabled",
        "proxies.publish1.binary_encoding",
        "proxies.publish2.endpoint",
        "proxies.rpc2.endpoint",
        "proxies.unused.endpoint",
        "rpc.namespaces.ns2.proxy_name",
    ];
    assert_eq!(converted.unknown, expected);
}

/// Methods that no endpoint answers in Centrifugo are not answered by `[rpc]`.
#[test]
fn methods_keep_their_endpoints() {
    let namespaces = |rpc: &str| {
        let json = format!(
            r#"{{ "proxies": [{{ "name": "other", "endpoint": "http://other/" }}, {{ "name": "rpc", "endpoint": "http://rpc/" }}],
                "rpc": {{ "proxy": {{ "endpoint": "http://own/", "binary_encoding": true }}, {rpc} }} }}"#
        );
        let Converted { toml, unknown } = convert_centrifugo(&json).unwrap();
        let config = HubConfig::from_toml(&toml).unwrap_or_else(|error| panic!("{error}\n{toml}"));
        let mut methods: Vec<_> = config
            .rpc_namespaces
            .into_iter()
            .map(|(name, choice)| match choice {
                ProxyChoice::Off => (name, None),
                ProxyChoice::On => (name, config.rpc.url.clone()),
                ProxyChoice::Named(endpoint) => (name, config.endpoints[&endpoint].url.clone()),
            })
            .collect();
        methods.push((String::new(), config.rpc.url));
        methods.sort();
        let methods = methods.into_iter().map(|(name, url)| format!("{name} {}", url.unwrap_or_default()));
        (methods.collect::<Vec<_>>(), unknown)
    };
    let on = |name: &str, more: &str| format!(r#"{{ "name": "{name}", "proxy_enabled": true{more} }}"#);
    let all = [
        on("own", ""),
        on("default", r#", "proxy_name": "default""#),
        on("a.b", r#", "proxy_name": "other""#),
        on("missing", r#", "proxy_name": "none""#),
        r#"{ "name": "off" }"#.to_owned(),
    ];
    let all = all.join(", ");
    let without = |options: &str| format!(r#""without_namespace": {{ {options} }}, "namespaces": [{all}]"#);
    let missing = "rpc.namespaces.missing.proxy_name";
    assert_eq!(
        namespaces(&without(r#""proxy_enabled": true"#)),
        (
            [
                "http://own/",
                "a.b http://other/",
                "default http://own/",
                "missing ",
                "off ",
                "own http://own/"
            ]
            .map(|line| if line.starts_with("http") { format!(" {line}") } else { line.into() })
            .to_vec(),
            ["proxies.rpc.endpoint", missing, "rpc.proxy.binary_encoding"].map(str::to_owned).to_vec()
        )
    );
    let of_others = ["a.b http://other/", "default http://own/"];
    assert_eq!(
        namespaces(&without("")),
        (
            [" ", of_others[0], of_others[1], "own http://own/"].map(str::to_owned).to_vec(),
            ["proxies.rpc.endpoint", missing, "rpc.proxy.binary_encoding"].map(str::to_owned).to_vec()
        )
    );
    assert_eq!(
        namespaces(&without(r#""proxy_enabled": true, "proxy_name": "rpc""#)),
        (
            [" http://rpc/", of_others[0], of_others[1], "missing ", "off ", "own http://own/"]
                .map(str::to_owned)
                .to_vec(),
            [missing, "rpc.proxy.binary_encoding"].map(str::to_owned).to_vec()
        )
    );
}

/// They are off in Centrifugo unless they are turned on.
#[test]
fn no_transport_is_turned_on() {
    let converted = convert_centrifugo(
        r#"{ "http_api": { "key": "k" }, "sse": { "enabled": false }, "uni_websocket": { "enabled": true },
             "http_stream": { "max_request_body_size": 5 } }"#,
    )
    .unwrap();
    let on = HubConfig::from_toml(&converted.toml).unwrap().transports;
    let on = [on.sse, on.http_stream, on.uni_websocket, on.uni_sse, on.uni_http_stream];
    assert_eq!(on, [false, false, true, false, false]);
    assert_eq!(converted.unknown, ["http_stream.max_request_body_size"]);
}

/// A file with a setting that has no effect without another one is refused, so the conversion leaves it out.
#[test]
fn what_has_no_effect_is_left_out_and_listed() {
    let converted = convert_centrifugo(
        r#"{
        "client": { "subscribe_to_user_personal_channel": { "personal_channel_namespace": "a" } },
        "channel": {
            "proxy": { "publish": { "endpoint": "http://b/", "timeout": "2s", "http_headers": ["Cookie"] } },
            "without_namespace": { "history_ttl": "60s", "force_recovery": true, "allow_history_for_client": true,
                                   "allow_history_for_anonymous": true },
            "namespaces": [
                { "name": "a", "history_size": 5, "history_ttl": "0s", "allow_presence_for_client": true, "force_recovery": true },
                { "name": "b", "history_size": 5, "history_ttl": "60s", "force_recovery": true }
            ]
        }
    }"#,
    )
    .unwrap();
    let config =
        HubConfig::from_toml(&converted.toml).unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
    assert!(config.namespaces["b"].has_history() && config.namespaces["b"].force_recovery);
    let expected = [
        "channel.namespaces.a.allow_presence_for_client",
        "channel.namespaces.a.force_recovery",
        "channel.namespaces.a.history_size",
        "channel.proxy.publish.endpoint",
        "channel.proxy.publish.http_headers",
        "channel.proxy.publish.timeout",
        "channel.without_namespace.allow_history_for_anonymous",
        "channel.without_namespace.allow_history_for_client",
        "channel.without_namespace.force_recovery",
        "channel.without_namespace.history_ttl",
        "client.subscribe_to_user_personal_channel.personal_channel_namespace",
    ];
    assert_eq!(converted.unknown, expected);
}

/// Endpoints and keys may be in the environment of the other server. What they decide stays closed.
#[test]
fn a_setting_that_is_missing_opens_nothing() {
    let converted = convert_centrifugo(
        r#"{
        "client": {
            "allow_anonymous_connect_without_token": true,
            "token": { "hmac_secret_key": "s" },
            "subscription_token": { "enabled": true },
            "proxy": { "connect": { "enabled": true, "timeout": "2s" } }
        },
        "channel": { "namespaces": [
            { "name": "a", "subscribe_proxy_enabled": true, "allow_subscribe_for_client": true, "allow_subscribe_for_anonymous": true,
              "publish_proxy_enabled": true, "allow_publish_for_client": true }
        ] }
    }"#,
    )
    .unwrap();
    let config =
        HubConfig::from_toml(&converted.toml).unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
    assert!(!config.client.anonymous);
    assert!(config.token.subscription.is_some_and(|tokens| tokens.hmac_secret.is_none()));
    let a = &config.namespaces["a"];
    assert_eq!((a.subscribe, a.publish), (Access::Token, Access::Token));
    let expected = [
        "channel.namespaces.a.allow_publish_for_client",
        "channel.namespaces.a.allow_subscribe_for_anonymous",
        "channel.namespaces.a.allow_subscribe_for_client",
        "channel.namespaces.a.publish_proxy_enabled",
        "channel.namespaces.a.subscribe_proxy_enabled",
        "client.allow_anonymous_connect_without_token",
        "client.proxy.connect.enabled",
        "client.proxy.connect.timeout",
        "client.subscription_token.enabled",
    ];
    assert_eq!(converted.unknown, expected);
}

#[test]
fn hubs_that_are_apart_stay_apart() {
    let prefix = |rest: &str| {
        let json = format!(r#"{{ "http_api": {{ "key": "k" }}, {rest} }}"#);
        let Converted { toml, unknown } = convert_centrifugo(&json).unwrap();
        (HubConfig::from_toml(&toml).unwrap().engine.prefix, unknown)
    };
    let nats = r#""broker": { "nats": { "prefix": "staging" } }"#;
    assert_eq!(prefix(nats), ("staging".into(), vec![]));
    let redis = |own: &str| format!(r#""engine": {{ "redis": {{ "prefix": "{own}" }} }}"#);
    assert_eq!(prefix(&redis("staging")), ("staging".into(), vec![]));
    assert_eq!(prefix(&format!("{}, {nats}", redis("staging"))), ("staging".into(), vec![]));
    let listed = vec!["broker.nats.prefix".to_owned()];
    assert_eq!(prefix(&format!("{}, {nats}", redis("other"))), ("other".into(), listed));
    let listed = vec!["engine.redis.prefix".to_owned()];
    assert_eq!(prefix(&redis("my.app")), ("wl".into(), listed));
}

#[test]
fn refuses_version_5() {
    for setting in [
        r#""token_rsa_public_key": "x""#,
        r#""proxy_subscribe_endpoint": "http://b/""#,
        r#""presence": true"#,
        r#""history_size": 10"#,
        r#""allow_subscribe_for_client": true"#,
        r#""api_key": "x""#,
        r#""namespaces": [{ "name": "chat" }]"#,
    ] {
        // Some sections have their names in both versions.
        for more in ["", r#", "client": { "allowed_origins": ["*"] }"#] {
            let refused = convert_centrifugo(&format!("{{{setting}{more}}}")).unwrap_err().to_string();
            assert!(refused.contains("version 5"), "{setting}: {refused}");
        }
    }
}

#[test]
fn nothing_is_left_out_silently() {
    let unknown = |rest: &str| {
        let json = format!(r#"{{ "http_api": {{ "key": "k" }}, "channel": {{ {rest} }} }}"#);
        convert_centrifugo(&json).unwrap().unknown
    };
    assert_eq!(unknown(r#""namespaces": {}, "without_namespace": {}"#), [""; 0]);
    assert_eq!(unknown(r#""private_prefix": "private-""#), ["channel.private_prefix"]);
    assert_eq!(unknown(r#""namespaces": { "chat": {} }"#), ["channel.namespaces"]);
    assert_eq!(unknown(r#""without_namespace": [1]"#), ["channel.without_namespace"]);
    let expected = ["channel.namespaces.1", "channel.namespaces.2", "channel.namespaces.3"];
    assert_eq!(unknown(r#""namespaces": [{ "name": "a" }, "b", { "name": 1 }, {}]"#), expected);
    // Where nothing is left, there is no configuration.
    let refused = convert_centrifugo(r#"{ "admin": { "enabled": true } }"#).unwrap_err().to_string();
    assert!(refused.contains("admin.enabled"), "{refused}");
    assert_eq!(convert_centrifugo("{}").unwrap().toml, "");
}
