//! The life of a stream: RFC 9113 §5.1, as a table.
//!
//! Owns which state follows which on what, for both ends. Refuses to own what a violation costs: the connection knows
//! the frame, and picks the code and the scope.
//!
//! ```text
//!                                +--------+
//!                        send PP |        | recv PP
//!                       ,--------+  idle  +--------.
//!                      /         |        |         \
//!                     v          +--------+          v
//!              +----------+          |           +----------+
//!              |          |          | send H /  |          |
//!       ,------+ reserved |          | recv H    | reserved +------.
//!       |      | (local)  |          |           | (remote) |      |
//!       |      +---+------+          v           +------+---+      |
//!       |          |             +--------+             |          |
//!       |          |     recv ES |        | send ES     |          |
//!       |   send H |     ,-------+  open  +-------.     | recv H   |
//!       |          |    /        |        |        \    |          |
//!       |          v   v         +---+----+         v   v          |
//!       |      +----------+          |           +----------+      |
//!       |      |   half-  |          |           |   half-  |      |
//!       |      |  closed  |          | send R /  |  closed  |      |
//!       |      | (remote) |          | recv R    | (local)  |      |
//!       |      +----+-----+          |           +-----+----+      |
//!       |           |                |                 |           |
//!       |           | send ES /      |       recv ES / |           |
//!       |           | send R /       v        send R / |           |
//!       |           | recv R     +--------+   recv R   |           |
//!       | send R /  `----------->|        |<-----------'  send R / |
//!       | recv R                 | closed |               recv R   |
//!       `----------------------->|        |<-----------------------'
//!                                +--------+
//!       H: HEADERS (with CONTINUATION)   PP: PUSH_PROMISE   ES: END_STREAM   R: RST_STREAM
//! ```

/// Where a stream stands. `Idle` and `Closed` are never stored: they are the absence of a record, below or above the
/// highest identifier used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Idle,
    ReservedLocal,
    ReservedRemote,
    Open,
    HalfClosedLocal,
    HalfClosedRemote,
    Closed,
}

/// What moves a stream on. A HEADERS frame that carries END_STREAM is two of these, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    SendPush,
    RecvPush,
    SendHeaders,
    RecvHeaders,
    SendEnd,
    RecvEnd,
    Reset,
}

use State::{Closed, HalfClosedLocal, HalfClosedRemote, Open, ReservedLocal, ReservedRemote};

/// `NEXT[state][step]`; `None` is a violation by whoever took the step.
#[rustfmt::skip]
const NEXT: [[Option<State>; 7]; 7] = [
    //                    SendPush             RecvPush              SendHeaders             RecvHeaders            SendEnd                RecvEnd                 Reset
    /* idle */            [Some(ReservedLocal), Some(ReservedRemote), Some(Open),             Some(Open),            None,                  None,                   None],
    /* reserved local */  [None,                None,                 Some(HalfClosedRemote), None,                  None,                  None,                   Some(Closed)],
    /* reserved remote */ [None,                None,                 None,                   Some(HalfClosedLocal), None,                  None,                   Some(Closed)],
    /* open */            [None,                None,                 Some(Open),             Some(Open),            Some(HalfClosedLocal), Some(HalfClosedRemote), Some(Closed)],
    /* half local */      [None,                None,                 None,                   Some(HalfClosedLocal), None,                  Some(Closed),           Some(Closed)],
    /* half remote */     [None,                None,                 Some(HalfClosedRemote), None,                  Some(Closed),          None,                   Some(Closed)],
    /* closed */          [None,                None,                 None,                   None,                  None,                  None,                   None],
];

impl State {
    /// A stream that this side has promised.
    pub(crate) const PROMISED_HERE: Self = Self::begun_by(Step::SendPush);
    /// A stream that the peer has promised.
    pub(crate) const PROMISED_BY_PEER: Self = Self::begun_by(Step::RecvPush);

    const fn begun_by(step: Step) -> Self {
        match Self::Idle.after(step) {
            Some(state) => state,
            None => panic!("no step that begins a stream"),
        }
    }

    /// The state after a step, or `None` when the step is not allowed from here.
    #[inline]
    pub(crate) const fn after(self, step: Step) -> Option<State> {
        NEXT[self as usize][step as usize]
    }

    /// Whether DATA may come from the peer (RFC 9113 §6.1).
    #[inline]
    pub(crate) const fn may_receive_data(self) -> bool {
        matches!(self, Open | HalfClosedLocal)
    }

    /// Whether DATA may be sent (RFC 9113 §6.1).
    #[inline]
    pub(crate) const fn may_send_data(self) -> bool {
        matches!(self, Open | HalfClosedRemote)
    }

    /// Whether the stream counts against SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113 §5.1.2).
    #[inline]
    pub(crate) const fn is_counted(self) -> bool {
        matches!(self, Open | HalfClosedLocal | HalfClosedRemote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::Idle;
    use Step::{RecvEnd, RecvHeaders, RecvPush, Reset, SendEnd, SendHeaders, SendPush};

    const STATES: [State; 7] =
        [Idle, ReservedLocal, ReservedRemote, Open, HalfClosedLocal, HalfClosedRemote, Closed];
    const STEPS: [Step; 7] = [SendPush, RecvPush, SendHeaders, RecvHeaders, SendEnd, RecvEnd, Reset];

    fn mirrored_state(state: State) -> State {
        match state {
            ReservedLocal => ReservedRemote,
            ReservedRemote => ReservedLocal,
            HalfClosedLocal => HalfClosedRemote,
            HalfClosedRemote => HalfClosedLocal,
            same => same,
        }
    }

    fn mirrored_step(step: Step) -> Step {
        match step {
            SendPush => RecvPush,
            RecvPush => SendPush,
            SendHeaders => RecvHeaders,
            RecvHeaders => SendHeaders,
            SendEnd => RecvEnd,
            RecvEnd => SendEnd,
            Reset => Reset,
        }
    }

    #[test]
    fn both_ends_see_the_same_life() {
        // RFC 9113 §5.1: what one end sends, the other receives; the diagram is its own mirror image.
        for state in STATES {
            for step in STEPS {
                let here = state.after(step).map(mirrored_state);
                assert_eq!(here, mirrored_state(state).after(mirrored_step(step)), "{state:?} {step:?}");
            }
        }
    }

    #[test]
    fn a_request_and_its_response_close_the_stream() {
        let client = [SendHeaders, SendEnd, RecvHeaders, RecvHeaders, RecvEnd];
        let end = client.iter().try_fold(Idle, |state, &step| state.after(step));
        assert_eq!(end, Some(Closed));
    }

    #[test]
    fn nothing_leaves_closed_and_a_reset_reaches_it_from_all_but_idle() {
        // RFC 9113 §6.4: RST_STREAM MUST NOT be sent for a stream in the idle state.
        for step in STEPS {
            assert_eq!(Closed.after(step), None);
        }
        for state in STATES {
            let expected = (state != Idle && state != Closed).then_some(Closed);
            assert_eq!(state.after(Reset), expected);
        }
    }

    #[test]
    fn data_moves_only_while_its_side_is_open() {
        // RFC 9113 §6.1: DATA is for streams in "open" or "half-closed".
        for state in STATES {
            assert_eq!(state.may_send_data(), state.after(SendEnd).is_some(), "{state:?}");
            assert_eq!(state.may_receive_data(), state.after(RecvEnd).is_some(), "{state:?}");
        }
    }

    #[test]
    fn reserved_streams_are_not_counted() {
        // RFC 9113 §5.1.2: streams in "open" or either "half-closed" state count.
        assert!(!ReservedLocal.is_counted() && !ReservedRemote.is_counted());
        assert!(Open.is_counted() && HalfClosedLocal.is_counted() && HalfClosedRemote.is_counted());
    }
}
