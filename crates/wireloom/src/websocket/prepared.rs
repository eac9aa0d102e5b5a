//! A message for many WebSockets: encoded once, and compressed once for each window size that they negotiated.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::{FrameCompressor, Kind, Outbound, OwnedMessage, PreparedFrame};

/// The windows for which a message is compressed, as exponents of two.
const WINDOW_BITS: std::ops::RangeInclusive<u8> = 9..=15;

const WINDOWS: usize = (*WINDOW_BITS.end() - *WINDOW_BITS.start()) as usize + 1;

/// A message to send over any number of WebSockets: the frame is encoded once, compressed once for each window size, and
/// queued by reference. Clones share it.
///
/// Send `&PreparedMessage` wherever a message is sent: [`Sender::send`](super::Sender::send),
/// [`feed`](super::Sender::feed), [`try_send`](super::Sender::try_send). Each connection takes the variant that it negotiated;
/// clients copy and mask the payload.
///
/// ```
/// use wireloom::PreparedMessage;
///
/// # async fn example(subscribers: &mut [wireloom::Sender]) -> Result<(), wireloom::Error> {
/// let message = PreparedMessage::text("to everyone");
/// for sender in subscribers {
///     sender.send(&message).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PreparedMessage(Arc<Variants>);

struct Variants {
    /// The plain frame; its payload is the message.
    plain: PreparedFrame,
    /// `None` for that of the first connection that needs a compressed frame.
    deflate: Option<DeflateConfig>,
    /// By window size from 2^9 on; made when a connection first needs it.
    compressed: [OnceLock<PreparedFrame>; WINDOWS],
}

impl PreparedMessage {
    /// A text message.
    pub fn text(text: &str) -> Self {
        Self::new(PreparedFrame::text(text), None)
    }

    /// A binary message.
    pub fn binary(data: &[u8]) -> Self {
        Self::new(PreparedFrame::binary(data), None)
    }

    /// Compresses with the level and memory of `config`, instead of those of the first connection that needs a compressed
    /// variant. Whether a connection takes one is decided by its own [`min_len`](DeflateConfig::min_len).
    #[must_use]
    pub fn with_deflate(self, config: &DeflateConfig) -> Self {
        Self::new(self.0.plain.clone(), Some(config.clone()))
    }

    fn new(plain: PreparedFrame, deflate: Option<DeflateConfig>) -> Self {
        Self(Arc::new(Variants { plain, deflate, compressed: Default::default() }))
    }

    /// Text or binary.
    pub fn kind(&self) -> Kind {
        self.0.plain.kind()
    }

    /// The payload of a text or binary message.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.plain.payload()
    }

    /// Its length in bytes, uncompressed.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text; `None` when the message is binary.
    pub fn as_text(&self) -> Option<&str> {
        match self.kind() {
            Kind::Text => std::str::from_utf8(self.as_bytes()).ok(),
            Kind::Binary => None,
        }
    }

    /// The message as an owned message.
    pub(crate) fn to_owned_message(&self) -> OwnedMessage {
        match self.as_text() {
            Some(text) => text.into(),
            None => Bytes::copy_from_slice(self.as_bytes()).into(),
        }
    }

    /// The variant that this connection negotiated.
    pub(super) fn frame(&self, core: &Outbound) -> &PreparedFrame {
        match core.prepared_window_bits(self.len()) {
            Some(bits) => self.compressed(bits, core),
            None => &self.0.plain,
        }
    }

    /// Whether [`frame`](Self::frame) does not have to compress.
    pub(super) fn is_ready(&self, core: &Outbound) -> bool {
        core.prepared_window_bits(self.len()).is_none_or(|bits| self.variant(bits).get().is_some())
    }

    fn variant(&self, window_bits: u8) -> &OnceLock<PreparedFrame> {
        let bits = window_bits.clamp(*WINDOW_BITS.start(), *WINDOW_BITS.end());
        &self.0.compressed[usize::from(bits - WINDOW_BITS.start())]
    }

    fn compressed(&self, window_bits: u8, core: &Outbound) -> &PreparedFrame {
        self.variant(window_bits).get_or_init(|| {
            let config = self.0.deflate.clone().unwrap_or_else(|| core.prepared_config());
            let frame = compress(&self.0.plain, window_bits, &config);
            // Discarded if compression made it longer.
            if frame.as_bytes().len() < self.0.plain.as_bytes().len() { frame } else { self.0.plain.clone() }
        })
    }
}

/// The compressor that a thread used last, with its parameters. A publisher mostly uses one.
type Cached = Option<(u8, DeflateConfig, FrameCompressor)>;

thread_local! {
    static COMPRESSOR: RefCell<Cached> = const { RefCell::new(None) };
}

fn compress(plain: &PreparedFrame, window_bits: u8, config: &DeflateConfig) -> PreparedFrame {
    // The thread-local is gone while the thread ends: then a compressor is created for this message alone.
    let cached = COMPRESSOR.try_with(|cached| cached.borrow_mut().take()).ok().flatten();
    let mut compressor = match cached {
        Some((bits, made_for, compressor)) if bits == window_bits && made_for == *config => compressor,
        _ => FrameCompressor::new(window_bits, config),
    };
    let frame = plain.compressed(&mut compressor);
    let _ =
        COMPRESSOR.try_with(|cached| *cached.borrow_mut() = Some((window_bits, config.clone(), compressor)));
    frame
}

impl fmt::Debug for PreparedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedMessage").field("kind", &self.kind()).field("len", &self.len()).finish()
    }
}
