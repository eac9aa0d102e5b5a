//! SETTINGS, and those of an upgrade.

use super::*;

#[test]
fn an_upgraded_request_is_stream_1() {
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 100_000;
    let value = upgrade::encode_http2_settings(&config.settings);
    let (mut client, here) = Connection::from_upgrade_client(config, RequestKind::Plain).unwrap();
    let (mut server, there) =
        Connection::from_upgrade_server(Config::new(Role::Server), value.as_bytes(), RequestKind::Plain)
            .unwrap();
    assert_eq!((here.id(), there.id()), (1, 1));
    assert_eq!(server.peer_settings().initial_window_size, 100_000);
    server.send_response(there, OK, true).unwrap();
    let (events, _) = settle(&mut client, &mut server);
    assert!(events.contains(&"response 1 200 true".into()), "{events:?}");
    assert_eq!(client.send_request(GET, true).unwrap().id(), 3);
}

#[test]
fn the_settings_of_an_upgrade_apply_without_an_acknowledgement() {
    // RFC 7540 §3.2.1: the server may use the table and the windows before it saw a SETTINGS frame.
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 100_000;
    config.settings.header_table_size = 8_192;
    let value = upgrade::encode_http2_settings(&config.settings);
    let (mut client, _) = Connection::from_upgrade_client(config, RequestKind::Plain).unwrap();
    let (mut server, there) =
        Connection::from_upgrade_server(Config::new(Role::Server), value.as_bytes(), RequestKind::Plain)
            .unwrap();
    assert_eq!(client.acknowledged_settings().header_table_size, 8_192);
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 60_000], true).unwrap();
    let down = drain(&mut server);
    let events = feed(&mut client, &down);
    assert!(events.last().unwrap().ends_with("true"), "{events:?}");
    settle(&mut client, &mut server);
    assert_eq!((client.ended(), server.ended()), (None, None));
}

#[test]
fn settings_that_must_not_change_cannot_be_changed() {
    let mut config = Config::new(Role::Server);
    config.settings.enable_connect_protocol = true;
    let (mut client, mut server) = ends_with(Config::new(Role::Client), config);
    settle(&mut client, &mut server);
    let settings = config.settings;
    let changed = [
        Settings { enable_connect_protocol: false, ..settings },
        Settings { no_rfc7540_priorities: !settings.no_rfc7540_priorities, ..settings },
        Settings { enable_push: !settings.enable_push, ..settings },
    ];
    for settings in changed {
        assert_eq!(server.update_settings(settings), Err(Misuse::SettingInvalid.into()));
    }
    server.update_settings(Settings { max_concurrent_streams: 7, ..settings }).unwrap();
    let (at_client, at_server) = settle(&mut client, &mut server);
    assert_eq!((at_client, at_server), (vec!["settings".into()], vec!["acknowledged".into()]));
    // A client may enable push and disable it.
    let settings = Config::new(Role::Client).settings;
    client.update_settings(Settings { enable_push: true, ..settings }).unwrap();
    client.update_settings(settings).unwrap();
}
