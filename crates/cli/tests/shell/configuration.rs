//! `wireloom hub`: tokens and configurations.

use serde_json::json;

use crate::command::run;
use crate::process::{Server, folder};

#[test]
fn an_address_in_use_is_named() {
    let used = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = used.local_addr().unwrap().to_string();
    for args in [["--listen", &address], ["--admin", &address]] {
        let (code, _, error) = run(&["serve", "--listen", "127.0.0.1:0", args[0], args[1]]);
        assert_eq!(code, 1);
        assert!(error.contains(&format!("{address}: the address is in use; choose another port")), "{error}");
    }
}

#[tokio::test]
async fn a_token_of_the_command_connects_and_no_other() {
    let folder = folder("token");
    let config = folder.join("hub.toml");
    let config = config.to_str().unwrap();
    std::fs::write(config, "token.hmac_secret = \"a secret of this test\"\n[[namespace]]\nname = \"rooms\"\nsubscribe = \"client\"\n")
        .unwrap();
    let (code, token, errors) = run(&["hub", "token", "--hub", config, "--user", "42", "--ttl", "5m"]);
    assert_eq!(code, 0, "{errors}");
    let serving = Server::start(&["--hub", config]).await;
    for (token, is_in) in [(token.trim(), true), ("x.y.z", false), ("", false)] {
        let mut socket = wireloom::connect(&serving.url("/connection/websocket")).await.unwrap();
        socket.send(&json!({ "id": 1, "connect": { "token": token } }).to_string()).await.unwrap();
        let reply = socket.recv_owned().await.ok().flatten();
        assert_eq!(
            reply.is_some_and(|reply| reply.as_text().unwrap().contains("\"client\"")),
            is_in,
            "{token}"
        );
    }
}

/// A container may have no file.
#[tokio::test]
async fn the_environment_acts_without_a_file() {
    let variable = ("WIRELOOM_HUB_CLIENT_ANONYMOUS", "false");
    let serving = Server::start_with_env(&[], Some(variable)).await;
    let mut socket = wireloom::connect(&serving.url("/rooms/a")).await.unwrap();
    assert!(socket.recv_owned().await.unwrap().is_none());
    // RFC 6455 §7.4.1: the code for a violation of the server's policy.
    assert_eq!(socket.end().unwrap().code().value(), 1008);
    let output = std::process::Command::new(crate::process::WIRELOOM)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("WIRELOOM_HUB_CLIENT_ANONYMOSU", "false")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("ANONYMOSU names no setting"), "{error}");
}

#[cfg(not(feature = "opentelemetry"))]
#[test]
fn a_collector_that_is_not_used_is_reported() {
    let serve = |endpoint| {
        let mut serve = std::process::Command::new(crate::process::WIRELOOM);
        serve.args(["serve", "--hub", "/nonexistent"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        String::from_utf8(serve.output().unwrap().stderr).unwrap()
    };
    let warning = "OTEL_EXPORTER_OTLP_ENDPOINT is ignored";
    assert!(serve("http://127.0.0.1:4318").contains(warning));
    assert!(!serve("").contains(warning));
}

#[test]
fn configurations_are_explained_checked_and_converted() {
    let folder = folder("config");
    let (code, out, _) = run(&["hub", "config"]);
    assert_eq!(code, 0);
    assert!(
        out.starts_with("[client]\n# Clients may connect without a token.\n# anonymous = false\n"),
        "{out}"
    );
    assert!(
        out.contains("\n# hmac_secret = (not set)\n") && out.contains("\n#   [rpc_namespaces]\n"),
        "{out}"
    );
    assert!(
        out.contains("\n[channel]\n") && out.contains("\n#   [[namespace]]\n#   name = \"chat\"\n"),
        "{out}"
    );
    let file = folder.join("hub.toml");
    for (text, expected) in [
        ("client.anonymous = true", Ok("this can be used")),
        ("client.anonymus = true", Err("unknown field `anonymus`")),
        ("token.hmac_secret = \"change me\"", Err("the one of an example")),
        ("token.rsa_public_key = \"x\"", Err("hub.toml: token.rsa_public_key")),
        ("events.url = \"ftp://a\"", Err("hub.toml: events.url")),
        (
            "channel.subscribe_proxy = \"a\"",
            Err("subscribe_proxy needs an [[endpoint]] with the name \"a\"; there is none"),
        ),
        (
            "channel.subscribe_proxy = \"a\"\n[[endpoint]]\nname = \"a\"\nurl = \"ftp://a\"",
            Err("hub.toml: endpoint.a.url"),
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, out, errors) = run(&["hub", "config", file.to_str().unwrap()]);
        match expected {
            Ok(expected) => assert!(code == 0 && out.contains(expected), "{text}: {out} {errors}"),
            Err(expected) => assert!(code == 1 && errors.contains(expected), "{text}: {out} {errors}"),
        }
    }
    let file = folder.join("config.json");
    std::fs::write(&file, r#"{"http_api":{"key":"k"},"admin":{"enabled":true}}"#).unwrap();
    let (code, out, errors) = run(&["hub", "config", "--from-centrifugo", file.to_str().unwrap()]);
    // There, fallbacks for WebSocket are off unless they are enabled.
    let expected = "[api]\nkey = \"k\"\n\n[transports]\nsse = false\n";
    assert!(code == 0 && out.starts_with(expected), "{code}: {out} {errors}");
    assert!(errors.contains("not converted: admin.enabled"), "{errors}");
    std::fs::write(&file, r#"{"token_hmac_secret_key":"s","namespaces":[{"name":"chat","presence":true}]}"#)
        .unwrap();
    let (code, out, errors) = run(&["hub", "config", "--from-centrifugo", file.to_str().unwrap()]);
    assert_eq!((code, &*out), (5, ""), "{errors}");
    assert!(errors.contains("version 5 of Centrifugo"), "{errors}");
    let proxies = r#"{"proxies":[{"name":"e1","endpoint":"http://a/","http_headers":["HEADER"]}],
        "channel":{"without_namespace":{"subscribe_proxy_enabled":true,"subscribe_proxy_name":"e1"}}}"#;
    for (header, expected) in [("Cookie", 0), ("Host", 5)] {
        std::fs::write(&file, proxies.replace("HEADER", header)).unwrap();
        let (code, out, errors) = run(&["hub", "config", "--from-centrifugo", file.to_str().unwrap()]);
        assert_eq!(code, expected, "{errors}");
        assert!(
            out.contains("subscribe_proxy = \"e1\"") && out.contains("[[endpoint]]\nname = \"e1\"\n"),
            "{out}"
        );
        assert_eq!(errors.contains("the header \"Host\" cannot be sent"), code == 5, "{errors}");
    }
    std::fs::write(&file, r#"{"http_api":{"key":7}}"#).unwrap();
    let (code, _, errors) = run(&["hub", "config", "--from-centrifugo", file.to_str().unwrap()]);
    assert!(code == 5 && errors.contains("the result needs a change"), "{code}: {errors}");
}
