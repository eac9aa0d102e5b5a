//! SETTINGS, and those of an upgrade.

use super::*;

#[test]
fn an_upgraded_request_is_stream_1() {
    // RFC 7540 §3.2.1: the server uses the table and the windows of the upgrade before it saw a SETTINGS frame.
    let settings =
        Settings { initial_window_size: 100_000, header_table_size: 0, ..Config::new(Role::Client).settings };
    let value = upgrade::encode_http2_settings(&settings);
    let (mut server, there) =
        Connection::from_upgrade_server(Config::new(Role::Server), value.as_bytes(), RequestKind::Plain)
            .unwrap();
    assert_eq!((there.id(), server.peer_settings().initial_window_size), (1, 100_000));
    server.send_response(there, OK, false).unwrap();
    server.send_data(there, vec![7; 60_000], true).unwrap();
    let sent = drain(&mut server);
    let frames = wireloom_testing::http2::split(&sent);
    let headers = frames.iter().find(|frame| frame.kind == kind::HEADERS).unwrap();
    assert_eq!((headers.stream, headers.payload[0]), (1, 0x20), "the size of the table");
    let content: usize =
        frames.iter().filter(|frame| frame.kind == kind::DATA).map(|frame| frame.payload.len()).sum();
    assert_eq!(content, 60_000);
    // The client's preface follows, and its next request is stream 3.
    let hello = [&PREFACE[..], &join(&[Frame::settings(&[]), Frame::settings_ack(), Frame::get(3)])].concat();
    assert_eq!(feed(&mut server, &hello), ["settings", "acknowledged", "request 3 4 true"]);
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

#[test]
fn the_peer_may_use_any_setting_that_is_in_flight() {
    // RFC 9113 §6.5.3: the peer applies each SETTINGS frame when it arrives, before its acknowledgement arrives here.
    let mut server = Connection::new(Role::Server, Config::new(Role::Server)).unwrap();
    let hello = [&PREFACE[..], &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat();
    feed(&mut server, &hello);
    let mut settings = server.config.settings;
    (settings.max_frame_size, settings.initial_window_size, settings.max_concurrent_streams) =
        (50_000, 400_000, 1_000);
    server.update_settings(settings).unwrap();
    (settings.max_frame_size, settings.initial_window_size, settings.max_concurrent_streams) =
        (16_384, 100_000, 10);
    server.update_settings(settings).unwrap();
    settings.header_table_size = 100;
    server.update_settings(settings).unwrap();
    // The client has the second of the four frames.
    feed(&mut server, &join(&[Frame::post(1), Frame::priority_update(901, "u=1")]));
    for _ in 0..8 {
        assert_eq!(feed(&mut server, &Frame::data(1, vec![7; 50_000]).to_bytes()), ["data 1 50000 false"]);
    }
    for _ in 0..3 {
        feed(&mut server, &Frame::settings_ack().to_bytes());
    }
    // After the acknowledgements only the last one counts.
    let frame = Frame::data(1, vec![7; 16_385]).to_bytes();
    let error = server.handle_input(Duration::ZERO, &frame).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::FRAME_SIZE_ERROR));
}

#[test]
fn the_smallest_of_several_table_sizes_is_announced_as_well() {
    // RFC 7541 §4.2: SETTINGS with 0 and then 4,096 empty the table of the encoder.
    let (mut client, mut server) = settled();
    let (_, first) = ask(&mut client, &mut server);
    let fields = [Field::known(Token::Status, b"200"), Field::new(b"x-same", b"value")];
    server.send_response(first, fields, true).unwrap();
    settle(&mut client, &mut server);
    let (_, second) = ask(&mut client, &mut server);
    feed(&mut server, &Frame::settings(&[(1, 0), (1, 4_096)]).to_bytes());
    drain(&mut server);
    server.send_response(second, fields, true).unwrap();
    let block = &drain(&mut server)[9..];
    assert_eq!(block[..4], [0x20, 0x3f, 0xe1, 0x1f], "0 and 4,096");
    assert_eq!(block[5], 0x40, "the table is empty");
}
