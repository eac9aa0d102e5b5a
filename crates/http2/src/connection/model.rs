//! Random operations on both ends of a connection, joined by wires that split bytes anywhere. Invariants: counters, lists and windows
//! are consistent after every step, and both ends have the same streams when the connection is idle.

use super::tests::{GET, OK};
use super::*;
use crate::error::ErrorCode;
use crate::field::Field;
use crate::priority::Priority;
use alloc::collections::BTreeMap;
use alloc::vec;
use wireloom_testing::http2::{Frame, PREFACE, flag, kind};
use wireloom_testing::{Rng, rounds};

/// The state of a stream at one end.
#[derive(Default)]
struct Known {
    /// Bytes that this end passed to `send_data`, and that it received: byte n of a stream is n modulo 251.
    sent: usize,
    received: usize,
    unreleased: usize,
    ended_here: bool,
    answered: bool,
    heard_end: bool,
}

struct End {
    connection: Connection,
    streams: BTreeMap<u32, (StreamKey, Known)>,
    /// Bytes in flight to this end.
    wire: VecDeque<u8>,
    reset: Vec<u32>,
    unacknowledged: Unacknowledged,
}

/// Predicts which SETTINGS and PING frames an end may send, from the frames that it has read.
struct Unacknowledged {
    /// The preface of a client that has not been read, in bytes.
    preface_len: usize,
    /// The frame that has been read in part.
    partial: Vec<u8>,
    settings: usize,
    pings: Vec<Vec<u8>>,
}

impl Unacknowledged {
    fn new(role: Role) -> Self {
        let preface_len = if role == Role::Server { PREFACE.len() } else { 0 };
        // Each end sends SETTINGS first.
        Self { preface_len, partial: vec![], settings: 1, pings: vec![] }
    }

    /// The end has read these bytes.
    fn read(&mut self, bytes: &[u8]) {
        let preface_len = self.preface_len.min(bytes.len());
        self.preface_len -= preface_len;
        self.partial.extend(&bytes[preface_len..]);
        let mut rest = &self.partial[..];
        while let Some(frame) = Frame::read(&mut rest) {
            if !frame.has(flag::ACK) {
                continue;
            }
            match frame.kind {
                kind::SETTINGS => self.settings -= 1,
                kind::PING => {
                    if let Some(at) = self.pings.iter().position(|payload| *payload == frame.payload) {
                        self.pings.remove(at);
                    }
                }
                _ => {}
            }
        }
        self.partial = rest.to_vec();
    }
}

struct Pair {
    /// Client, server.
    ends: [End; 2],
    random: Rng,
    now: Duration,
}

impl Pair {
    fn new(mut random: Rng) -> Self {
        let ends = [Role::Client, Role::Server].map(|role| {
            let mut config = Config::new(role);
            config.settings.initial_window_size = random.u32(1..100_000);
            config.settings.max_concurrent_streams = random.u32(1..12);
            config.settings.enable_push = role == Role::Server || random.bool();
            config.connection_window = random.u32(65_535..300_000);
            config.stream_window_max = random.u32(1..400_000);
            config.auto_release = random.bool();
            config.memory_max = random.u64(0..400_000);
            config.output_ahead = random.usize(1..40_000);
            config.hash_key = random.u64(..);
            let connection = Connection::new(role, config).unwrap();
            End {
                connection,
                streams: BTreeMap::new(),
                wire: VecDeque::new(),
                reset: vec![],
                unacknowledged: Unacknowledged::new(role),
            }
        });
        Self { ends, random, now: Duration::ZERO }
    }

    fn pick(&mut self, side: usize) -> Option<(u32, StreamKey)> {
        let end = &self.ends[side];
        let live: Vec<_> = end.streams.iter().map(|(&id, &(key, _))| (id, key)).collect();
        (!live.is_empty()).then(|| live[self.random.usize(..live.len())])
    }

    fn act(&mut self) {
        let side = self.random.usize(..2);
        let Some((id, key)) = self.pick(side) else { return self.ask() };
        let end = &mut self.ends[side];
        let connection = &mut end.connection;
        let known = &mut end.streams.get_mut(&id).unwrap().1;
        match self.random.u32(..20) {
            0..4 => self.ask(),
            4..7 => {
                let end_stream = self.random.bool();
                if side == 1 && connection.send_response(key, OK, end_stream).is_ok() {
                    known.answered = true;
                    known.ended_here = end_stream;
                }
            }
            7..12 => {
                let len =
                    if self.random.bool() { self.random.usize(..50) } else { self.random.usize(..40_000) };
                let end_stream = self.random.u32(..4) == 0;
                let data: Vec<u8> = (known.sent..known.sent + len).map(|n| (n % 251) as u8).collect();
                let may = known.answered && !known.ended_here;
                let sent = connection.send_data(key, data, end_stream);
                assert_eq!(sent.is_ok(), may, "{sent:?} on {id} of {side}");
                if may {
                    known.sent += len;
                    known.ended_here = end_stream;
                }
            }
            12 => {
                let may = known.answered && !known.ended_here;
                let sent = connection.send_trailers(key, [Field::new(b"x-end", b"1")]);
                assert_eq!(sent.is_ok(), may, "{sent:?} on {id} of {side}");
                known.ended_here |= may;
            }
            13 => {
                connection.reset(key, ErrorCode::CANCEL).unwrap();
                end.streams.remove(&id);
                end.reset.push(id);
            }
            14..17 => {
                let len = self.random.usize(..=known.unreleased);
                connection.release_capacity(key, len).unwrap();
                known.unreleased -= len;
            }
            17 => {
                let mut settings = connection.config.settings;
                settings.initial_window_size = self.random.u32(..100_000);
                settings.max_concurrent_streams = self.random.u32(1..12);
                settings.header_table_size = self.random.u32(..5000);
                let sent = connection.update_settings(settings);
                if end.unacknowledged.settings < connection.limits().settings_unacknowledged_max {
                    sent.unwrap();
                    end.unacknowledged.settings += 1;
                } else {
                    assert_eq!(sent, Err(Misuse::SettingsUnacknowledged.into()));
                }
            }
            18 => {
                let priority = Priority { urgency: self.random.u8(..8), incremental: self.random.bool() };
                connection.set_priority(key, priority).unwrap();
                if side == 0 {
                    connection.send_priority_update(key, priority).unwrap();
                } else if let Ok(promised) = connection.push_promise(key, GET) {
                    end.streams.insert(promised.id(), (promised, Known::default()));
                }
            }
            _ => {
                let payload = self.random.u64(..).to_be_bytes();
                let sent = connection.send_ping(self.now, payload);
                if end.unacknowledged.pings.len() < connection.limits().pings_unacknowledged_max {
                    sent.unwrap();
                    end.unacknowledged.pings.push(payload.to_vec());
                } else {
                    assert_eq!(sent, Err(Misuse::PingsUnacknowledged.into()));
                }
            }
        }
        self.forget_gone(side);
    }

    fn ask(&mut self) {
        let end_stream = self.random.bool();
        let key = self.ends[0].connection.send_request(GET, end_stream).unwrap();
        let known = Known { answered: true, ended_here: end_stream, ..Known::default() };
        self.ends[0].streams.insert(key.id(), (key, known));
    }

    /// Moves some of the output to the other end, and lets it read some of that.
    fn deliver(&mut self, side: usize, all: bool) {
        let [client, server] = &mut self.ends;
        let (from, to) = if side == 0 { (client, server) } else { (server, client) };
        let mut slices = [&[][..]; 3];
        let filled = from.connection.poll_transmit(self.now, &mut slices);
        let offered = slices[..filled].concat();
        let len = if all { offered.len() } else { self.random.usize(..=offered.len()) };
        to.wire.extend(&offered[..len]);
        from.connection.transmitted(self.now, len);
        let len = if all { to.wire.len() } else { self.random.usize(..=to.wire.len().min(9000)) };
        let bytes: Vec<u8> = to.wire.iter().copied().take(len).collect();
        let mut at = 0;
        loop {
            let auto = to.connection.config.auto_release;
            let (taken, event) = to.connection.handle_input(self.now, &bytes[at..]).unwrap();
            at += taken;
            let Some(event) = event else { break };
            match event {
                Event::Request { stream, end_stream, .. } => {
                    let known = Known { heard_end: end_stream, ..Known::default() };
                    assert!(to.streams.insert(stream.id(), (stream, known)).is_none());
                }
                Event::Promise { promised, .. } => {
                    let known = Known { answered: true, ended_here: true, ..Known::default() };
                    to.streams.insert(promised.id(), (promised, known));
                }
                Event::Response { stream, end_stream, .. } => {
                    to.streams.get_mut(&stream.id()).unwrap().1.heard_end |= end_stream;
                }
                Event::Trailers { stream, .. } => {
                    to.streams.get_mut(&stream.id()).unwrap().1.heard_end = true;
                }
                Event::Data { stream, data, end_stream } => {
                    let known = &mut to.streams.get_mut(&stream.id()).unwrap().1;
                    assert!(!known.heard_end);
                    let ordered = data.iter().zip(known.received..).all(|(&byte, n)| byte == (n % 251) as u8);
                    assert!(ordered, "content out of order on {stream:?}");
                    known.received += data.len();
                    known.unreleased += if auto { 0 } else { data.len() };
                    known.heard_end = end_stream;
                }
                Event::Reset { stream, error, .. } => {
                    assert!(matches!(error, None | Some(Error::Limit { .. })), "{error:?}");
                    to.streams.remove(&stream.id());
                    to.reset.push(stream.id());
                }
                Event::Refused { stream } => {
                    to.streams.remove(&stream.id());
                    to.reset.push(stream.id());
                }
                _ => {}
            }
        }
        to.wire.drain(..at);
        to.unacknowledged.read(&bytes[..at]);
        while from.connection.poll_event().is_some() {}
        self.forget_gone(0);
        self.forget_gone(1);
    }

    /// Checks that streams which ended without a reset have received all content.
    fn forget_gone(&mut self, side: usize) {
        let end = &mut self.ends[side];
        end.streams.retain(|_, (key, known)| {
            let there = end.connection.contains(*key);
            assert!(there || (known.ended_here && known.heard_end) || end.connection.role == Role::Server);
            there
        });
    }

    fn check(&self) {
        for end in &self.ends {
            let connection = &end.connection;
            connection.streams.check();
        }
        let [client, server] = &self.ends;
        // The send window of one end is the granted window of the other, except for frames in flight.
        let [client, server] = [&client.connection.streams, &server.connection.streams];
        assert!(client.send_window() <= server.recv_window());
        assert!(server.send_window() <= client.recv_window());
    }

    fn settle(&mut self) {
        // A stream whose window stays closed is idle as well.
        for _ in 0..400 {
            self.deliver(0, true);
            self.deliver(1, true);
            for side in 0..2 {
                let keys: Vec<_> = self.ends[side].streams.keys().copied().collect();
                for id in keys {
                    let end = &mut self.ends[side];
                    let (key, known) = end.streams.get_mut(&id).unwrap();
                    end.connection.release_capacity(*key, core::mem::take(&mut known.unreleased)).unwrap();
                }
            }
        }
        self.check();
        let [client, server] = &self.ends;
        let (c, s) = (&client.connection, &server.connection);
        assert_eq!((c.out.len(), s.out.len(), client.wire.len(), server.wire.len()), (0, 0, 0, 0));
        let (c_streams, s_streams) = (&c.streams, &s.streams);
        assert_eq!(c_streams.send_window(), s_streams.recv_window());
        assert_eq!(s_streams.send_window(), c_streams.recv_window());
        assert_eq!(c.control.peer.initial_window_size, s.control.acknowledged.initial_window_size);
        for (here, there) in [(client, server), (server, client)] {
            let (ours, theirs) = (&here.connection.streams, &there.connection.streams);
            ours.for_each(|slot, stream| {
                if ours.is_idle(stream.id) {
                    return;
                }
                let other = theirs.find(stream.id).unwrap_or_else(|| panic!("{stream:?} is gone there"));
                assert_eq!(ours.windows(slot).0, theirs.windows(other).1, "{stream:?}");
                let known = &here.streams[&stream.id.get()].1;
                let received = there.streams[&stream.id.get()].1.received;
                assert_eq!(known.sent, received + stream.queued as usize);
                if stream.queued > 0 {
                    let is_closed = ours.windows(slot).0 <= 0 || ours.send_window() == 0;
                    assert!(is_closed, "{stream:?} could send");
                }
            });
        }
    }
}

#[test]
fn both_ends_agree_whatever_they_do() {
    rounds(8, |rng| {
        let mut pair = Pair::new(Rng::with_seed(rng.seed()));
        for _ in 0..2 {
            for _ in 0..600 {
                pair.act();
                pair.now += Duration::from_millis(pair.random.u64(..20));
                let side = pair.random.usize(..2);
                pair.deliver(side, false);
                pair.check();
            }
            pair.settle();
        }
    });
}
