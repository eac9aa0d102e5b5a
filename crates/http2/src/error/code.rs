//! [`ErrorCode`]: the error codes of RST_STREAM and GOAWAY (RFC 9113 §7).

/// The reason why a stream or a connection ended: 32 bits. Unknown codes are preserved.
///
/// ```
/// use wireloom_http2::error::ErrorCode;
///
/// assert_eq!(ErrorCode::CANCEL.get(), 8);
/// assert_eq!(ErrorCode::from(0x1234).name(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name of the code in RFC 9113 §7; `None` if it is unknown. Treat unknown codes like
            /// [`ErrorCode::INTERNAL_ERROR`].
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// No error: a graceful shutdown.
    NO_ERROR = 0x0,
    /// An unspecific protocol error.
    PROTOCOL_ERROR = 0x1,
    /// An unexpected internal error.
    INTERNAL_ERROR = 0x2,
    /// More DATA than the window allowed, or a window above the maximum.
    FLOW_CONTROL_ERROR = 0x3,
    /// SETTINGS were not acknowledged in time.
    SETTINGS_TIMEOUT = 0x4,
    /// A frame on a stream that was half-closed.
    STREAM_CLOSED = 0x5,
    /// A frame of an invalid size.
    FRAME_SIZE_ERROR = 0x6,
    /// The stream was not processed: the request may be retried.
    REFUSED_STREAM = 0x7,
    /// The stream is no longer needed.
    CANCEL = 0x8,
    /// The compression context of fields cannot be maintained.
    COMPRESSION_ERROR = 0x9,
    /// The connection of a CONNECT request was reset or closed abnormally.
    CONNECT_ERROR = 0xa,
    /// The peer behaves in a way that might generate excessive load.
    ENHANCE_YOUR_CALM = 0xb,
    /// The transport does not meet the security requirements.
    INADEQUATE_SECURITY = 0xc,
    /// The request needs HTTP/1.1.
    HTTP_1_1_REQUIRED = 0xd,
}

impl ErrorCode {
    /// The code as a number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl From<u32> for ErrorCode {
    fn from(code: u32) -> Self {
        Self(code)
    }
}

impl From<ErrorCode> for u32 {
    fn from(code: ErrorCode) -> Self {
        code.0
    }
}

impl core::fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

impl core::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn knows_the_codes_of_the_registry() {
        // RFC 9113 §7: fourteen codes, 0x00 to 0x0d.
        let names: alloc::vec::Vec<_> = (0..14).map(|code| ErrorCode::from(code).name().unwrap()).collect();
        assert_eq!(names[0], "NO_ERROR");
        assert_eq!(names[7], "REFUSED_STREAM");
        assert_eq!(names[13], "HTTP_1_1_REQUIRED");
        assert_eq!(ErrorCode::from(14).name(), None);
    }

    #[test]
    fn keeps_unknown_codes() {
        // RFC 9113 §7: unknown or unsupported error codes MUST NOT trigger any special behavior.
        let code = ErrorCode::from(0xdead_beef);
        assert_eq!(code.get(), 0xdead_beef);
        assert_eq!(format!("{code} {:?}", ErrorCode::CANCEL), "0xdeadbeef CANCEL");
    }
}
