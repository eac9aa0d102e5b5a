//! The result of a call.

use core::ffi::{CStr, c_char};
use wireloom_http2::error::Misuse as H2Misuse;
use wireloom_ws::{Error as WsError, Misuse as WsMisuse};

/// The result of a call. Negative: an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum wl_status {
    /// Done.
    Ok = 0,
    /// Done so far; call again with the remaining input. Not an error.
    More = 1,

    /// A pointer that must not be null is null.
    NullPointer = -1,
    /// An argument is out of range, misaligned, longer than `PTRDIFF_MAX`, or overlaps another one.
    InvalidArgument = -2,
    /// The handle is zero, freed, or of another type.
    InvalidHandle = -3,
    /// Another thread is using the handle.
    Busy = -4,
    /// The library has a bug, which was caught. The handle can only be freed.
    Panicked = -5,
    /// The buffer is too small. Its required length was stored, and nothing else has changed unless the function says so.
    BufferTooSmall = -6,
    /// The text is not valid UTF-8.
    InvalidUtf8 = -7,
    /// No more handles can be made.
    TooManyHandles = -8,

    /// The peer broke the protocol.
    PeerMisbehaved = -20,
    /// The peer exceeded a limit.
    LimitExceeded = -21,

    /// The connection is closing or has ended.
    NotOpen = -40,
    /// The handshake is in another state.
    WrongState = -41,
    /// A message sent in chunks is not finished.
    MessageUnderWay = -42,
    /// The send queue is full. Write output first.
    QueueFull = -43,
    /// The stream has ended.
    StreamGone = -44,
    /// The connection is going away: open a new one.
    GoingAway = -45,
    /// The protocol does not allow this now, or not with these values.
    NotAllowed = -46,
}

impl wl_status {
    const fn text(self) -> &'static CStr {
        match self {
            Self::Ok => c"ok",
            Self::More => c"call again with the remaining input",
            Self::NullPointer => c"pointer is null",
            Self::InvalidArgument => c"argument is invalid",
            Self::InvalidHandle => c"handle is invalid",
            Self::Busy => c"handle is used by another thread",
            Self::Panicked => c"bug in the library",
            Self::BufferTooSmall => c"buffer is too small",
            Self::InvalidUtf8 => c"text is not valid UTF-8",
            Self::TooManyHandles => c"too many handles",
            Self::PeerMisbehaved => c"peer broke the protocol",
            Self::LimitExceeded => c"peer exceeded a limit",
            Self::NotOpen => c"connection is not open",
            Self::WrongState => c"handshake is in another state",
            Self::MessageUnderWay => c"a message is not finished",
            Self::QueueFull => c"send queue is full",
            Self::StreamGone => c"stream has ended",
            Self::GoingAway => c"connection is going away",
            Self::NotAllowed => c"not allowed now",
        }
    }

    const ALL: [Self; 19] = [
        Self::Ok,
        Self::More,
        Self::NullPointer,
        Self::InvalidArgument,
        Self::InvalidHandle,
        Self::Busy,
        Self::Panicked,
        Self::BufferTooSmall,
        Self::InvalidUtf8,
        Self::TooManyHandles,
        Self::PeerMisbehaved,
        Self::LimitExceeded,
        Self::NotOpen,
        Self::WrongState,
        Self::MessageUnderWay,
        Self::QueueFull,
        Self::StreamGone,
        Self::GoingAway,
        Self::NotAllowed,
    ];
}

impl From<WsError> for wl_status {
    fn from(error: WsError) -> Self {
        match error {
            WsError::Peer(_) => Self::PeerMisbehaved,
            WsError::Limit(_) => Self::LimitExceeded,
            WsError::Misuse(misuse) => misuse.into(),
            _ => Self::NotAllowed,
        }
    }
}

impl From<WsMisuse> for wl_status {
    fn from(misuse: WsMisuse) -> Self {
        match misuse {
            WsMisuse::NotOpen => Self::NotOpen,
            WsMisuse::MessageUnderWay => Self::MessageUnderWay,
            WsMisuse::QueueFull { .. } => Self::QueueFull,
            WsMisuse::PreparedForOthers => Self::NotAllowed,
            _ => Self::InvalidArgument,
        }
    }
}

impl From<wireloom_http2::error::Error> for wl_status {
    fn from(error: wireloom_http2::error::Error) -> Self {
        use wireloom_http2::error::Error;
        match error {
            Error::Peer { .. } => Self::PeerMisbehaved,
            Error::Limit { .. } => Self::LimitExceeded,
            Error::Misuse(misuse) => misuse.into(),
            _ => Self::NotAllowed,
        }
    }
}

impl From<H2Misuse> for wl_status {
    fn from(misuse: H2Misuse) -> Self {
        match misuse {
            H2Misuse::StreamGone => Self::StreamGone,
            H2Misuse::GoingAway | H2Misuse::StreamIdsExhausted => Self::GoingAway,
            H2Misuse::ConnectionClosed => Self::NotOpen,
            H2Misuse::OpenQueueFull | H2Misuse::StreamQueueFull => Self::QueueFull,
            H2Misuse::SettingInvalid => Self::InvalidArgument,
            _ => Self::NotAllowed,
        }
    }
}

/// The meaning of a status in English: a static string. Any number is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_status_text(status: i32) -> *const c_char {
    let known = wl_status::ALL.into_iter().find(|known| *known as i32 == status);
    known.map_or(c"unknown status", wl_status::text).as_ptr()
}

/// The version of the library, such as "0.1.0": a static string.
#[unsafe(no_mangle)]
pub extern "C" fn wl_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no null byte"),
        };
    VERSION.as_ptr()
}
