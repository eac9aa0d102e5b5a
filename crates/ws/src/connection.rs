//! One end of an open WebSocket: the two halves, [`Inbound`] and [`Outbound`], under one roof. The closing handshake of
//! RFC 6455 §7, deadlines. The opening handshake comes before, in [`crate::handshake`].
//!
//! ```text
//!           close(), or the peer broke a rule
//!  Open ------------------------------------------> our Close is sent ----+
//!   |                                                       |             | close_timeout
//!   | their Close arrives: its echo is sent                 | theirs      v
//!   +--------------------------------------------> both are exchanged   Close
//!                                                           |             ^
//!                                    server: at once; client: at EOF -----+
//! ```

use crate::config::Config;
use crate::deflate::{Decompressor, DeflateConfig, DeflateParams};
use crate::error::Error;
use crate::event::{Event, Payload};
use crate::inbound::{self, Inbound};
use crate::keys::MaskKeys;
use crate::outbound::Outbound;
use crate::receive::Arrival;
use crate::role::Role;
use alloc::boxed::Box;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// What is to be done with the transport once nothing is left to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Keep it: read, write, wait for [`Outbound::poll_timeout`].
    Open,
    /// Shut down the writing side, and go on reading until its end or the deadline, so that the peer gets to read the
    /// Close frame instead of a reset.
    ShutdownWrite,
    /// Close it.
    Close,
}

/// One end of an open WebSocket, without I/O.
///
/// Four families of methods:
/// - getters;
/// - `handle_*`, for what comes in: [`handle_input`](Self::handle_input) (or [`recv_slot`](Self::recv_slot)), [`handle_timeout`](Outbound::handle_timeout), [`handle_eof`](Outbound::handle_eof);
/// - commands: `send_*`, [`close`](Outbound::close);
/// - `poll_*`, for what goes out: [`poll_transmit`](Outbound::poll_transmit) and [`transmitted`](Outbound::transmitted),
///   [`poll_timeout`](Outbound::poll_timeout).
///
/// A driver reads, calls `handle_input` until it has no event left, writes what `poll_transmit` shows, and sleeps until bytes
/// or the deadline of `poll_timeout` come, until [`transport`](Outbound::transport) tells it to stop. Times are durations since
/// any epoch that does not change.
///
/// ```
/// use std::time::Duration;
/// use wireloom_ws::{Config, Connection, Event};
///
/// let now = Duration::ZERO;
/// let mut client = Connection::client(Config::default(), None, [7; 32], now);
/// let mut server = Connection::server(Config::default(), None, now);
///
/// client.send_text("Hello")?;
/// let mut wire = client.take_transmit();
///
/// let (_used, event) = server.handle_input(now, &mut wire)?;
/// assert!(matches!(event, Some(Event::Text(text)) if &*text == "Hello"));
/// # Ok::<(), wireloom_ws::Error>(())
/// ```
///
/// What an event borrows must be used before the connection is touched again:
///
/// ```compile_fail,E0499
/// # use std::time::Duration;
/// # use wireloom_ws::{Config, Connection};
/// # let now = Duration::ZERO;
/// let mut server = Connection::server(Config::default(), None, now);
/// let (mut one, mut two) = ([0x81, 0], [0x81, 0]);
/// let first = server.handle_input(now, &mut one);
/// let second = server.handle_input(now, &mut two);
/// drop(first);
/// ```
///
/// What sends is an [`Outbound`], which this dereferences to; [`split`](Self::split) parts the two for those who read and write
/// in different places.
pub struct Connection {
    inbound: Inbound,
    outbound: Outbound,
    /// Of the pong that arrived last, if it answered a ping.
    round_trip: Option<Duration>,
}

impl Connection {
    /// The server's end of a WebSocket whose handshake is over. `deflate` is what the handshake negotiated, with the
    /// configuration that it was negotiated from.
    pub fn server(config: Config, deflate: Option<(DeflateParams, &DeflateConfig)>, now: Duration) -> Self {
        Self::new(Role::Server, config, deflate, None, now)
    }

    /// The client's end of a WebSocket whose handshake is over. `seed` comes fresh from the operating system's source of
    /// randomness for each connection: masking keys are drawn from it (RFC 6455 §10.3).
    pub fn client(
        config: Config,
        deflate: Option<(DeflateParams, &DeflateConfig)>,
        seed: [u8; 32],
        now: Duration,
    ) -> Self {
        Self::new(Role::Client, config, deflate, Some(Box::new(MaskKeys::new(seed))), now)
    }

    fn new(
        role: Role,
        config: Config,
        deflate: Option<(DeflateParams, &DeflateConfig)>,
        keys: Option<Box<MaskKeys>>,
        now: Duration,
    ) -> Self {
        let outbound = Outbound::new(role, &config, deflate, keys, now);
        let decompressor = deflate.map(|(params, _)| Decompressor::new(role, &params));
        Self { inbound: Inbound::new(role, &config, decompressor), outbound, round_trip: None }
    }

    /// Both halves, each on its own. What [`Inbound`] finds must be told to [`Outbound`] then.
    pub fn split(self) -> (Inbound, Outbound) {
        (self.inbound, self.outbound)
    }

    /// Takes bytes from the front of `input`, up to the end of what makes the next event: how many, and the event. Call again
    /// with the rest until there is no event; all of `input` has been taken then. Payloads are unmasked where they lie, and
    /// borrowed from there when they arrived whole.
    ///
    /// Once the peer has sent a Close frame or broken a rule, all further input is dropped (RFC 6455 §1.4).
    ///
    /// # Errors
    /// The rule or limit that the peer broke. It is told once; [`end`](Outbound::end) keeps it. The Close frame that answers it
    /// is queued: go on transmitting, and do with the transport what [`transport`](Outbound::transport) says.
    #[inline]
    pub fn handle_input<'a>(
        &'a mut self,
        now: Duration,
        input: &'a mut [u8],
    ) -> Result<(usize, Option<Event<'a>>), Error> {
        if !self.outbound.is_listening() {
            return Ok((input.len(), None));
        }
        if let Some((whole, at, len)) = self.inbound.whole_message(input) {
            self.outbound.heard(now);
            let payload = Payload::Input(&mut input[at..at + len]);
            return Ok((at + len, Some(inbound::message(whole, payload))));
        }
        let (used, arrival) = self.advance(now, input)?;
        Ok((used, self.inbound.event(arrival, input, self.round_trip)))
    }

    /// Room for the next bytes of a large message, at the end of the message itself. `None` outside of one: then read into a
    /// buffer of your own, and pass it to [`handle_input`](Self::handle_input).
    ///
    /// The room is at most as long as the part of the message that has arrived, and 256 KiB; a read may bring less. From memory,
    /// reads of 16 KiB are fastest, since their bytes are still in the first level of cache when they are unmasked; from a
    /// socket, longer ones save system calls.
    ///
    /// ```
    /// # use std::{io::Read, time::Duration};
    /// # use wireloom_ws::{Connection, Event};
    /// fn read_large(connection: &mut Connection, now: Duration, mut socket: impl Read) -> std::io::Result<()> {
    ///     while let Some(mut slot) = connection.recv_slot() {
    ///         let len = socket.read(&mut slot)?;
    ///         match slot.filled(now, len) {
    ///             Ok(Some(Event::Binary(message))) => println!("{} bytes", message.len()),
    ///             Ok(_) => {}
    ///             Err(error) => println!("{error}"),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn recv_slot(&mut self) -> Option<RecvSlot<'_>> {
        if !self.outbound.is_listening() || self.inbound.slot().is_none() {
            return None;
        }
        Some(RecvSlot { connection: self })
    }

    /// Gives back the memory that an idle connection can do without: buffers that hold nothing, and the compression state
    /// where forgetting it is allowed. For a driver that sees that nothing has come for a while.
    pub fn release_buffers(&mut self) {
        self.inbound.release_buffers();
        self.outbound.release_buffers();
    }

    /// Everything but the fast path. It returns a place, not an event: an event made here would go through memory on the
    /// fast path too.
    #[inline(never)]
    fn advance(&mut self, now: Duration, input: &mut [u8]) -> Result<(usize, Arrival), Error> {
        if !input.is_empty() {
            self.outbound.heard(now);
        }
        match self.inbound.advance(input, self.inbound.delivery()) {
            Ok((used, arrival)) => {
                if let Arrival::Control { opcode, at, len } = arrival {
                    let payload = self.inbound.control(at, len, input);
                    self.round_trip = self.outbound.handle_control(now, opcode, payload);
                }
                Ok((used, arrival))
            }
            Err(error) => {
                self.outbound.handle_error(now, error);
                Err(error)
            }
        }
    }
}

/// Room at the end of a large message; see [`Connection::recv_slot`].
///
/// It is read into through `DerefMut`, and [`filled`](Self::filled) says how far. Bytes that were not announced that way are not
/// part of the message.
pub struct RecvSlot<'a> {
    connection: &'a mut Connection,
}

impl<'a> RecvSlot<'a> {
    /// The first `len` bytes have been read into.
    ///
    /// # Errors
    /// As for [`Connection::handle_input`].
    ///
    /// # Panics
    /// When `len` is more than the slot holds.
    pub fn filled(self, now: Duration, len: usize) -> Result<Option<Event<'a>>, Error> {
        let Connection { inbound, outbound, .. } = self.connection;
        outbound.heard(now);
        match inbound.slot_filled(len) {
            Ok(arrival) => Ok(inbound.event(arrival, &mut [], None)),
            Err(error) => {
                outbound.handle_error(now, error);
                Err(error)
            }
        }
    }
}

impl Deref for RecvSlot<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.connection.inbound.slot_bytes()
    }
}

impl DerefMut for RecvSlot<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.connection.inbound.slot().unwrap_or_default()
    }
}

impl Deref for Connection {
    type Target = Outbound;

    #[inline]
    fn deref(&self) -> &Outbound {
        &self.outbound
    }
}

impl DerefMut for Connection {
    #[inline]
    fn deref_mut(&mut self) -> &mut Outbound {
        &mut self.outbound
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outbound.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close::CloseCode;
    use crate::config::{Delivery, Keepalive};
    use crate::end::{Cause, End, Initiator};
    use crate::error::{Misuse, PeerMisbehaved};
    use crate::event::Pong;
    use crate::limits::PONGS_QUEUED_LEN_MAX;
    use crate::opcode::Kind;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use alloc::vec::Vec;
    use bytes::Bytes;

    const NOW: Duration = Duration::from_secs(1000);

    fn client() -> Connection {
        Connection::client(Config::default(), None, [9; 32], NOW)
    }

    fn server() -> Connection {
        Connection::server(Config::default(), None, NOW)
    }

    fn deflated(delivery: Delivery) -> (Connection, Connection) {
        let mut response = String::new();
        let deflate = DeflateConfig::default();
        let mut offer = String::new();
        deflate.offer(&mut offer);
        let offers = crate::handshake::extensions::parse(&offer).unwrap();
        let params = deflate.accept_offers(offers.iter(), &mut response).unwrap();
        let config = Config { delivery, ..Config::default() };
        let client = Connection::client(config.clone(), Some((params, &deflate)), [9; 32], NOW);
        (client, Connection::server(config, Some((params, &deflate)), NOW))
    }

    /// What a connection hears, in words; large messages are delivered through the slot when `slot` is set.
    fn hear(connection: &mut Connection, wire: &[u8], step: usize, slot: bool) -> Vec<String> {
        let mut heard = Vec::new();
        let mut message = Vec::new();
        let mut note = |event: &Event<'_>| match event {
            Event::Text(text) => heard.push(format!("text {}", text.len())),
            Event::Binary(data) => heard.push(format!("binary {}", data.len())),
            Event::Chunk(chunk) => {
                assert_eq!(chunk.first, message.is_empty());
                message.extend_from_slice(chunk.data);
                if chunk.fin {
                    heard.push(format!("chunks {}", message.len()));
                    message.clear();
                }
            }
            Event::Ping(payload) => heard.push(format!("ping {}", payload.len())),
            Event::Pong(pong) => heard.push(format!("pong {:?}", pong.round_trip)),
            Event::Close(close) => heard.push(format!("close {:?} {}", close.code, close.reason)),
        };
        let mut rest = wire;
        while !rest.is_empty() {
            if slot && let Some(mut slot) = connection.recv_slot() {
                let len = slot.len().min(step).min(rest.len());
                slot[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                if let Some(event) = slot.filled(NOW, len).unwrap() {
                    note(&event);
                }
                continue;
            }
            let mut piece = rest[..step.min(rest.len())].to_vec();
            rest = &rest[piece.len()..];
            let mut at = 0;
            while let (used, Some(event)) = connection.handle_input(NOW, &mut piece[at..]).unwrap() {
                note(&event);
                at += used;
            }
        }
        heard
    }

    fn say(connection: &mut Connection) -> Vec<u8> {
        connection.send_text("Hello").unwrap();
        connection.send_binary(&[1; 300]).unwrap();
        connection.send_text_chunk("one ", false).unwrap();
        connection.send_ping(NOW, b"ping").unwrap();
        connection.send_text_chunk("two", true).unwrap();
        connection.send_bytes(Bytes::from(vec![b'{'; 200_000])).unwrap();
        connection.send_text(&"häßlich ".repeat(10_000)).unwrap();
        connection.send_text("").unwrap();
        connection.close(NOW, CloseCode::NORMAL, "bye").unwrap();
        connection.take_transmit()
    }

    const SAID: [&str; 8] = [
        "text 5",
        "binary 300",
        "ping 4",
        "text 7",
        "binary 200000",
        "text 100000",
        "text 0",
        "close Some(CloseCode(1000)) bye",
    ];

    #[test]
    fn carries_messages_both_ways_at_every_step() {
        for step in [1, 7, 100, 4096, 65_536, 1 << 20] {
            for slot in [false, true] {
                for (mut from, mut to) in [(client(), server()), (server(), client())] {
                    let wire = say(&mut from);
                    assert_eq!(hear(&mut to, &wire, step, slot), SAID, "step {step}");
                }
                let (mut from, mut to) = deflated(Delivery::Messages);
                let wire = say(&mut from);
                assert!(wire.len() < 10_000);
                assert_eq!(hear(&mut to, &wire, step, slot), SAID, "step {step}, compressed");
            }
        }
    }

    #[test]
    fn lends_messages_in_chunks() {
        for step in [1, 7, 100, 4096, 65_536, 1 << 20] {
            let (mut from, mut to) = deflated(Delivery::Chunks);
            let wire = say(&mut from);
            let heard = hear(&mut to, &wire, step, true);
            let said = SAID.map(|said| said.replace("text", "chunks").replace("binary", "chunks"));
            let heard: Vec<String> =
                heard.iter().map(|said| said.replace("text", "chunks").replace("binary", "chunks")).collect();
            assert_eq!(heard, said, "step {step}");
        }
    }

    // RFC 6455 §7.1.1, §5.5.1: both exchange Close frames, and the server closes TCP first.
    #[test]
    fn closes_cleanly_from_either_end() {
        for (mut one, mut two) in [(client(), server()), (server(), client())] {
            one.close(NOW, CloseCode::GOING_AWAY, "later").unwrap();
            assert_eq!(one.send_text("no"), Err(Misuse::NotOpen.into()));
            let wire = one.take_transmit();
            hear(&mut two, &wire, 3, false);
            assert_eq!(two.end().unwrap().by, Initiator::Peer);
            assert_eq!(two.end().unwrap().code(), CloseCode::GOING_AWAY);
            let wire = two.take_transmit();
            hear(&mut one, &wire, 3, false);
            assert_eq!(one.end().unwrap().by, Initiator::Local);
            for end in [&mut one, &mut two] {
                assert!(end.was_clean());
                let expected = if end.role() == Role::Server { Transport::Close } else { Transport::Open };
                assert_eq!(end.transport(), expected);
                end.handle_eof();
                assert_eq!(end.transport(), Transport::Close);
            }
        }
    }

    // RFC 6455 §7.1.7.
    #[test]
    fn says_why_it_failed_and_stops_listening() {
        let mut server = server();
        let error = server.handle_input(NOW, &mut [0x81, 0x01, b'x']).map(drop).unwrap_err();
        assert_eq!(error, PeerMisbehaved::UnmaskedFrame.into());
        assert_eq!(server.end().unwrap().cause, Cause::Error(error));
        let wire = server.take_transmit();
        assert_eq!(&wire[..4], [0x88, wire.len() as u8 - 2, 0x03, 0xEA]);
        assert_eq!(&wire[4..], b"unmasked frame from a client");
        assert_eq!(server.transport(), Transport::ShutdownWrite);
        assert!(matches!(server.handle_input(NOW, &mut [0x81, 0x01, b'x']), Ok((3, None))));
        assert_eq!(server.poll_timeout(), Some(NOW + Duration::from_secs(10)));
        server.handle_timeout(NOW + Duration::from_secs(10));
        assert_eq!(server.transport(), Transport::Close);
        assert_eq!(server.end().unwrap().cause, Cause::Error(error));
    }

    // RFC 6455 §5.5.3.
    #[test]
    fn answers_pings_and_measures_the_round_trip() {
        let (mut client, mut server) = (client(), server());
        client.send_ping(NOW, b"one").unwrap();
        client.send_ping(NOW, b"two").unwrap();
        let wire = client.take_transmit();
        assert_eq!(hear(&mut server, &wire, 100, false), ["ping 3", "ping 3"]);
        let mut wire = server.take_transmit();
        assert_eq!(wire, b"\x8a\x03one\x8a\x03two");
        wire.drain(..5);
        let later = NOW + Duration::from_millis(30);
        let (_, event) = client.handle_input(later, &mut wire).unwrap();
        let Some(Event::Pong(pong)) = event else { panic!("no pong") };
        assert_eq!(pong, Pong { payload: b"two", round_trip: Some(Duration::from_millis(30)) });
    }

    #[test]
    fn bounds_the_answers_to_a_peer_that_does_not_read() {
        let mut server = server();
        for i in 0..100_000u32 {
            let [a, b, c, d] = i.to_be_bytes();
            server.handle_input(NOW, &mut [0x89, 0x84, 0, 0, 0, 0, a, b, c, d]).unwrap();
        }
        let most = PONGS_QUEUED_LEN_MAX.next_multiple_of(6);
        assert_eq!(server.queued_len(), most);
        // What is owed when there is room again is the newest.
        let wire = server.take_transmit();
        assert_eq!(wire[..6], [0x8A, 4, 0, 0, 0, 0]);
        assert_eq!(wire.len(), most + 6);
        assert_eq!(wire[most..], [&[0x8A, 4][..], &99_999u32.to_be_bytes()].concat());
    }

    // RFC 6455 §5.5.1: no frame after a Close frame.
    #[test]
    fn sends_no_pong_behind_a_close() {
        let mut config = Config::default();
        config.limits.queued_len_high = 10;
        let mut server = Connection::server(config, None, NOW);
        server.send_binary(&[0; 20]).unwrap();
        server.handle_input(NOW, &mut [0x89, 0x80, 0, 0, 0, 0]).unwrap();
        server.close(NOW, None, "").unwrap();
        assert!(server.take_transmit().ends_with(&[0x88, 0]));
        assert!(!server.wants_write());
    }

    #[test]
    fn pings_a_silent_peer_and_gives_it_up() {
        let keepalive = Keepalive { ping_after: Duration::from_secs(5), dead_after: Duration::from_secs(12) };
        let config = Config { keepalive: Some(keepalive), ..Config::default() };
        let mut server = Connection::server(config, None, NOW);
        let due = server.poll_timeout().unwrap();
        server.handle_timeout(due);
        assert_eq!(server.take_transmit(), b"\x89\x08\0\0\0\0\0\0\0\x01");
        server.handle_timeout(NOW + Duration::from_secs(12));
        assert_eq!(server.end().unwrap(), &End { by: Initiator::Local, cause: Cause::Silence });
        assert_eq!(server.transport(), Transport::Close);
    }

    #[test]
    fn refuses_what_would_pile_up() {
        let mut config = Config::default();
        config.limits.queued_len_max = 100;
        let mut server = Connection::server(config, None, NOW);
        server.send_binary(&[0; 200]).unwrap();
        assert_eq!(server.send_binary(&[0]), Err(Misuse::QueueFull { queued: 204, max: 100 }.into()));
        server.take_transmit();
        server.send_binary(&[0; 98]).unwrap();
    }

    // What both halves do together they do apart, when what one finds is told to the other.
    #[test]
    fn works_in_halves() {
        let (mut inbound, mut outbound) = server().split();
        let mut client = client();
        client.send_ping(NOW, b"ping").unwrap();
        client.send_text("Hello").unwrap();
        client.close(NOW, CloseCode::NORMAL, "bye").unwrap();
        let mut wire = client.take_transmit();
        wire.extend_from_slice(b"dropped");
        let (mut at, mut heard) = (0, Vec::new());
        while let (used, Some(mut event)) = inbound.handle_input(&mut wire[at..]).unwrap() {
            outbound.handle_event(NOW, &mut event);
            heard.push(format!("{event:?}"));
            at += used;
        }
        assert_eq!(heard.len(), 3, "{heard:?}");
        assert_eq!(outbound.take_transmit(), b"\x8a\x04ping\x88\x02\x03\xe8");
        assert_eq!(outbound.end().unwrap().by, Initiator::Peer);
        assert!(outbound.was_clean());
        assert!(matches!(inbound.handle_input(&mut [0x81, 0x80]), Ok((2, None))));
    }

    #[test]
    fn tells_a_fault_from_one_half_to_the_other() {
        let (mut inbound, mut outbound) = server().split();
        let error = inbound.handle_input(&mut [0x81, 0x01, b'x']).map(drop).unwrap_err();
        outbound.handle_error(NOW, error);
        assert!(outbound.take_transmit().starts_with(b"\x88"));
        assert!(matches!(inbound.handle_input(&mut [0x82, 0x80, 0, 0, 0, 0]), Ok((6, None))));
    }

    // The peer's Close frame may have arrived before this end learns that nothing can be written.
    #[test]
    fn hears_a_close_after_a_write_has_failed() {
        let mut server = server();
        server.send_text("lost").unwrap();
        server.handle_write_failed(NOW);
        assert_eq!(server.send_text("no"), Err(Misuse::NotOpen.into()));
        assert!(!server.wants_write());
        assert_eq!(server.end().unwrap().cause, Cause::TransportClosed);
        let deadline = server.poll_timeout();
        assert_eq!(deadline, Some(NOW + Duration::from_secs(10)));
        let mut client = client();
        client.send_text("last words").unwrap();
        client.close(NOW, CloseCode::NORMAL, "").unwrap();
        let wire = client.take_transmit();
        assert_eq!(hear(&mut server, &wire, 5, false), ["text 10", "close Some(CloseCode(1000)) "]);
        assert_eq!(
            (server.end().unwrap().by, server.end().unwrap().code()),
            (Initiator::Peer, CloseCode::NORMAL)
        );
        assert!(!server.wants_write());
        assert_eq!(server.transport(), Transport::Close);
    }

    #[test]
    fn writes_a_borrowed_payload_behind_the_queue_and_copies_the_rest() {
        for step in [0, 1, 4, 200, 312, usize::MAX] {
            let mut server = server();
            server.send_ping(NOW, b"first").unwrap();
            let mut wire = Vec::new();
            let mut send = server.send_borrowed(Kind::Binary, &[7; 300]).unwrap();
            for _ in 0..2 {
                let mut slices: [&[u8]; 4] = [&[]; 4];
                let count = send.poll_transmit(&mut slices);
                let shown = slices[..count].concat();
                let written = step.min(shown.len());
                wire.extend_from_slice(&shown[..written]);
                send.transmitted(written);
            }
            drop(send);
            assert_eq!(server.queued_len(), 311 - wire.len());
            wire.extend(server.take_transmit());
            assert_eq!(wire, [b"\x89\x05first", &[0x82, 126, 1, 44][..], &[7; 300]].concat());
        }
        // A client masks a copy.
        let mut client = client();
        let send = client.send_borrowed(Kind::Text, b"masked").unwrap();
        assert_eq!(send.poll_transmit(&mut [&[], &[]]), 1);
        drop(send);
        assert_eq!(hear(&mut server(), &client.take_transmit(), 100, false), ["text 6"]);
    }

    // A congested queue lets no ping out, so that no pong can come: what the peer reads shows that it is alive.
    #[test]
    fn a_peer_that_reads_a_congested_queue_is_not_silent() {
        let (ping_after, dead_after) = (Duration::from_secs(10), Duration::from_secs(25));
        let config = Config { keepalive: Some(Keepalive { ping_after, dead_after }), ..Config::default() };
        for reads in [true, false] {
            let mut server = Connection::server(config.clone(), None, NOW);
            server.send_binary(&vec![0; 2 << 20]).unwrap();
            for second in 1..60 {
                let now = NOW + Duration::from_secs(second);
                server.handle_timeout(now);
                if reads && second % 5 == 0 {
                    server.transmitted(1000);
                    server.handle_write_progress(now);
                }
            }
            assert_eq!(server.is_open(), reads);
        }
    }

    #[test]
    fn what_is_idle_can_be_made_again() {
        let mut config = Config::default();
        config.limits.message_len_max = 7;
        let (mut inbound, _) = Connection::server(config, None, NOW).split();
        let idle = inbound.idle().unwrap();
        // Within a header, a frame, a message it is not.
        for piece in [&[0x02][..], &[0x82, 0, 0, 0, 0, 1], &[2]] {
            assert!(inbound.handle_input(&mut piece.to_vec()).unwrap().1.is_none());
            assert_eq!(inbound.idle(), None);
        }
        assert!(inbound.handle_input(&mut [0x80, 0x80, 0, 0, 0, 0]).unwrap().1.is_some());
        assert_eq!(inbound.idle(), Some(idle));
        let mut again = Inbound::from(idle);
        assert!(again.handle_input(&mut [0x82, 0x81, 0, 0, 0, 0, 1]).unwrap().1.is_some());
        assert!(again.handle_input(&mut [0x82, 0x88, 0, 0, 0, 0]).is_err());
        assert_eq!(again.idle(), None);
    }
}
