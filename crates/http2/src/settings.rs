//! [`Settings`]: the settings of an endpoint, their initial values and their ranges (RFC 9113 §6.5.2, RFC 8441 §3, RFC 9218 §2.1).
//!
//! The connection applies its own settings when the peer acknowledges them (RFC 9113 §6.5.3), and the peer's at once.

use crate::Role;
use crate::error::{Misuse, Violation};
use crate::frame::{FrameHeader, Setting, Values};

/// The identifiers of the known settings.
pub mod id {
    /// RFC 9113 §6.5.2
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    /// RFC 9113 §6.5.2
    pub const ENABLE_PUSH: u16 = 0x2;
    /// RFC 9113 §6.5.2
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    /// RFC 9113 §6.5.2
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    /// RFC 9113 §6.5.2
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    /// RFC 9113 §6.5.2
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// RFC 8441 §3
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    /// RFC 9218 §2.1
    pub const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// The maximum window (RFC 9113 §6.9.1), in bytes.
pub const WINDOW_SIZE_MAX: u32 = u32::MAX >> 1;
/// The minimum of SETTINGS_MAX_FRAME_SIZE, which every endpoint accepts (RFC 9113 §4.2), in bytes.
pub const FRAME_LEN_MIN: u32 = 1 << 14;

/// The settings of one endpoint.
///
/// ```
/// use wireloom_http2::{Role, Settings};
/// use wireloom_http2::frame::{Setting, Values};
///
/// let ours = Settings { initial_window_size: 1 << 20, ..Settings::INITIAL };
/// let entries: Vec<Setting> = ours.entries_since(&Settings::INITIAL).collect();
/// assert_eq!(entries, [Setting { id: 4, value: 1 << 20 }]);
///
/// let mut theirs = Settings::INITIAL;
/// theirs.apply(Values::from_bytes(&[0, 5, 0, 0, 0x80, 0])?, Role::Client, true)?;
/// assert_eq!(theirs.max_frame_size, 32_768);
/// # Ok::<(), wireloom_http2::error::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The maximum size of the other end's encoder table, in bytes.
    pub header_table_size: u32,
    /// Whether push is accepted. Only a client sends it.
    pub enable_push: bool,
    /// The number of streams that the other end may have open; `u32::MAX` means no limit, and is not sent.
    pub max_concurrent_streams: u32,
    /// The initial window of streams, in bytes: `<= WINDOW_SIZE_MAX`.
    pub initial_window_size: u32,
    /// The maximum length of a frame's payload, in bytes: `FRAME_LEN_MIN..=FrameHeader::LEN_MAX`.
    pub max_frame_size: u32,
    /// The maximum size of a field list, in bytes as RFC 9113 §6.5.2 counts them; `u32::MAX` means no limit, and is not sent.
    pub max_header_list_size: u32,
    /// Whether extended CONNECT is accepted (RFC 8441). Only a server sends it.
    pub enable_connect_protocol: bool,
    /// Whether the priorities of RFC 7540 are not used (RFC 9218 §2.1).
    pub no_rfc7540_priorities: bool,
}

/// The changes by a SETTINGS frame that affect other parts of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The smallest SETTINGS_HEADER_TABLE_SIZE in the frame, if there is one. An encoder must signal it, even if the final size is
    /// larger (RFC 7541 §4.2).
    pub header_table_size_min: Option<u32>,
    /// The change of the windows of all streams (RFC 9113 §6.9.2), in bytes.
    pub initial_window_delta: i64,
}

impl Settings {
    /// The initial values (RFC 9113 §6.5.2).
    pub const INITIAL: Self = Self {
        header_table_size: 4_096,
        enable_push: true,
        max_concurrent_streams: u32::MAX,
        initial_window_size: 65_535,
        max_frame_size: FRAME_LEN_MIN,
        max_header_list_size: u32::MAX,
        enable_connect_protocol: false,
        no_rfc7540_priorities: false,
    };

    /// Applies the entries of a frame from an endpoint of this role in order, so that the last of repeated ones counts. `first` is
    /// whether the frame is the first one of the connection.
    ///
    /// # Errors
    /// A value is invalid. The entries before it have been applied, and it is a connection error.
    pub fn apply(&mut self, values: Values<'_>, from: Role, first: bool) -> Result<Changes, Violation> {
        let before = *self;
        let mut header_table_size_min = None;
        // RFC 9113 §6.5.3: the values are processed in the order in which they appear.
        for Setting { id, value } in values.iter() {
            match id {
                id::HEADER_TABLE_SIZE => {
                    self.header_table_size = value;
                    header_table_size_min = Some(header_table_size_min.unwrap_or(value).min(value));
                }
                id::ENABLE_PUSH => {
                    self.enable_push = flag(value).ok_or(Violation::EnablePushValue)?;
                    // RFC 9113 §6.5.2: a client treats 1 from a server as a connection error.
                    if self.enable_push && from == Role::Server {
                        return Err(Violation::EnablePushByServer);
                    }
                }
                id::MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = value,
                id::INITIAL_WINDOW_SIZE if value > WINDOW_SIZE_MAX => {
                    return Err(Violation::InitialWindowSizeValue);
                }
                id::INITIAL_WINDOW_SIZE => self.initial_window_size = value,
                id::MAX_FRAME_SIZE if !(FRAME_LEN_MIN..=FrameHeader::LEN_MAX).contains(&value) => {
                    return Err(Violation::MaxFrameSizeValue);
                }
                id::MAX_FRAME_SIZE => self.max_frame_size = value,
                id::MAX_HEADER_LIST_SIZE => self.max_header_list_size = value,
                id::ENABLE_CONNECT_PROTOCOL => {
                    let enable = flag(value).ok_or(Violation::EnableConnectProtocolValue)?;
                    // RFC 8441 §3: 0 MUST NOT be sent after 1.
                    if self.enable_connect_protocol && !enable {
                        return Err(Violation::EnableConnectProtocolRevoked);
                    }
                    self.enable_connect_protocol = enable;
                }
                id::NO_RFC7540_PRIORITIES => {
                    let no_priorities = flag(value).ok_or(Violation::NoRfc7540PrioritiesValue)?;
                    // RFC 9218 §2.1: the value MUST NOT change after the first SETTINGS.
                    if !first && no_priorities != before.no_rfc7540_priorities {
                        return Err(Violation::NoRfc7540PrioritiesChanged);
                    }
                    self.no_rfc7540_priorities = no_priorities;
                }
                // RFC 9113 §6.5.2: unknown settings MUST be ignored.
                _ => {}
            }
        }
        let initial_window_delta =
            i64::from(self.initial_window_size) - i64::from(before.initial_window_size);
        Ok(Changes { header_table_size_min, initial_window_delta })
    }

    /// Checks settings that an end of this role announces.
    ///
    /// # Errors
    /// [`Misuse::SettingInvalid`] if the peer would have to refuse a value.
    pub const fn check(&self, role: Role) -> Result<(), Misuse> {
        let valid = self.initial_window_size <= WINDOW_SIZE_MAX
            && self.max_frame_size >= FRAME_LEN_MIN
            && self.max_frame_size <= FrameHeader::LEN_MAX
            // RFC 8441 §3: only servers send SETTINGS_ENABLE_CONNECT_PROTOCOL.
            && (matches!(role, Role::Server) || !self.enable_connect_protocol);
        if valid { Ok(()) } else { Err(Misuse::SettingInvalid) }
    }

    /// The entries that differ from `before`.
    pub fn entries_since(&self, before: &Self) -> impl Iterator<Item = Setting> + use<> {
        self.numbers().into_iter().zip(before.numbers()).filter_map(|((id, value), (_, value_before))| {
            (value != value_before).then_some(Setting { id, value })
        })
    }

    const fn numbers(&self) -> [(u16, u32); 8] {
        [
            (id::HEADER_TABLE_SIZE, self.header_table_size),
            (id::ENABLE_PUSH, self.enable_push as u32),
            (id::MAX_CONCURRENT_STREAMS, self.max_concurrent_streams),
            (id::INITIAL_WINDOW_SIZE, self.initial_window_size),
            (id::MAX_FRAME_SIZE, self.max_frame_size),
            (id::MAX_HEADER_LIST_SIZE, self.max_header_list_size),
            (id::ENABLE_CONNECT_PROTOCOL, self.enable_connect_protocol as u32),
            (id::NO_RFC7540_PRIORITIES, self.no_rfc7540_priorities as u32),
        ]
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::INITIAL
    }
}

const fn flag(value: u32) -> Option<bool> {
    match value {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use crate::frame;
    use alloc::vec::Vec;
    use wireloom_testing::rounds;

    fn bytes(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::SettingsFrame::encode(entries.iter().map(|&(id, value)| Setting { id, value }), &mut out);
        out.split_off(FrameHeader::LEN)
    }

    fn apply(
        to: &mut Settings,
        entries: &[(u16, u32)],
        from: Role,
        first: bool,
    ) -> Result<Changes, Violation> {
        to.apply(Values::from_bytes(&bytes(entries)).unwrap(), from, first)
    }

    #[test]
    fn values_out_of_range_have_the_codes_of_the_rfc() {
        use ErrorCode as E;
        use Violation as V;
        const PROTOCOL: ErrorCode = E::PROTOCOL_ERROR;
        // RFC 9113 §6.5.2, RFC 8441 §3, RFC 9218 §2.1: the entry, who sends it, and what it is answered with.
        let cases = [
            (id::ENABLE_PUSH, 2, Role::Client, Some((V::EnablePushValue, PROTOCOL))),
            (id::ENABLE_PUSH, 1, Role::Client, None),
            (id::ENABLE_PUSH, 0, Role::Server, None),
            (id::ENABLE_PUSH, 1, Role::Server, Some((V::EnablePushByServer, PROTOCOL))),
            (id::INITIAL_WINDOW_SIZE, 0x7fff_ffff, Role::Client, None),
            (
                id::INITIAL_WINDOW_SIZE,
                0x8000_0000,
                Role::Client,
                Some((V::InitialWindowSizeValue, E::FLOW_CONTROL_ERROR)),
            ),
            (id::MAX_FRAME_SIZE, 16_383, Role::Server, Some((V::MaxFrameSizeValue, PROTOCOL))),
            (id::MAX_FRAME_SIZE, 16_384, Role::Server, None),
            (id::MAX_FRAME_SIZE, 16_777_215, Role::Server, None),
            (id::MAX_FRAME_SIZE, 16_777_216, Role::Server, Some((V::MaxFrameSizeValue, PROTOCOL))),
            (id::ENABLE_CONNECT_PROTOCOL, 2, Role::Server, Some((V::EnableConnectProtocolValue, PROTOCOL))),
            (id::NO_RFC7540_PRIORITIES, 2, Role::Server, Some((V::NoRfc7540PrioritiesValue, PROTOCOL))),
            (id::HEADER_TABLE_SIZE, u32::MAX, Role::Server, None),
            (id::MAX_CONCURRENT_STREAMS, 0, Role::Server, None),
            (id::MAX_HEADER_LIST_SIZE, 0, Role::Server, None),
            // RFC 9113 §6.5.2: unknown identifiers MUST be ignored.
            (0x7, u32::MAX, Role::Server, None),
            (0xffff, u32::MAX, Role::Client, None),
        ];
        for (id, value, from, wanted) in cases {
            let result = apply(&mut Settings::INITIAL.clone(), &[(id, value)], from, true);
            let got = result.err().map(|violation| (violation, violation.answer().0));
            assert_eq!(got, wanted, "{id:#x} = {value}");
        }
    }

    #[test]
    fn the_last_of_repeated_entries_counts() {
        // RFC 9113 §6.5.3: processed in order.
        let mut settings = Settings::INITIAL;
        let entries = [(1, 9_000), (1, 100), (1, 5_000), (4, 1_000_000), (4, 10), (9, 1)];
        let changes = apply(&mut settings, &entries, Role::Client, true).unwrap();
        assert_eq!(settings.header_table_size, 5_000);
        // RFC 7541 §4.2: the smallest size in between has to be signalled.
        assert_eq!(changes.header_table_size_min, Some(100));
        assert_eq!(changes.initial_window_delta, 10 - 65_535);
        assert!(settings.no_rfc7540_priorities);
        assert_eq!(apply(&mut settings, &[], Role::Client, false), Ok(Changes::default()));
    }

    #[test]
    fn settings_that_must_not_change_do_not_change() {
        let mut settings = Settings::INITIAL;
        apply(&mut settings, &[(id::ENABLE_CONNECT_PROTOCOL, 1)], Role::Server, true).unwrap();
        apply(&mut settings, &[(id::ENABLE_CONNECT_PROTOCOL, 1)], Role::Server, false).unwrap();
        // RFC 8441 §3: MUST NOT send 0 after 1.
        let result = apply(&mut settings, &[(id::ENABLE_CONNECT_PROTOCOL, 0)], Role::Server, false);
        assert_eq!(result, Err(Violation::EnableConnectProtocolRevoked));
        // RFC 9218 §2.1: MUST NOT change after the first SETTINGS; a repetition is none.
        assert_eq!(apply(&mut settings, &[(id::NO_RFC7540_PRIORITIES, 0)], Role::Server, false).err(), None);
        let result = apply(&mut settings, &[(id::NO_RFC7540_PRIORITIES, 1)], Role::Server, false);
        assert_eq!(result, Err(Violation::NoRfc7540PrioritiesChanged));
    }

    #[test]
    fn checks_what_this_side_announces() {
        let good = Settings::INITIAL;
        let most =
            Settings { max_frame_size: FrameHeader::LEN_MAX, initial_window_size: WINDOW_SIZE_MAX, ..good };
        for settings in [good, most] {
            assert_eq!(settings.check(Role::Client), Ok(()), "{settings:?}");
        }
        let bad = [
            Settings { max_frame_size: 16_383, ..good },
            Settings { max_frame_size: 1 << 24, ..good },
            Settings { initial_window_size: 1 << 31, ..good },
        ];
        for settings in bad {
            assert_eq!(settings.check(Role::Client), Err(Misuse::SettingInvalid), "{settings:?}");
        }
        let connect = Settings { enable_connect_protocol: true, ..Settings::default() };
        assert_eq!(connect.check(Role::Server), Ok(()));
        assert_eq!(connect.check(Role::Client), Err(Misuse::SettingInvalid));
    }

    #[test]
    fn applying_the_entries_gives_the_announced_settings() {
        rounds(300, |rng| {
            let mut draw = || Settings {
                header_table_size: *rng.pick(&[0, 4_096, u32::MAX]),
                enable_push: rng.bool(),
                max_concurrent_streams: *rng.pick(&[0, 100, u32::MAX]),
                initial_window_size: rng.u32(..=WINDOW_SIZE_MAX),
                max_frame_size: rng.u32(FRAME_LEN_MIN..=FrameHeader::LEN_MAX),
                max_header_list_size: rng.u32(..),
                ..Settings::INITIAL
            };
            let (before, after) = (draw(), draw());
            let entries: Vec<_> = after.entries_since(&before).map(|s| (s.id, s.value)).collect();
            let mut seen = before;
            apply(&mut seen, &entries, Role::Client, false).unwrap();
            assert_eq!(seen, after);
        });
    }
}
