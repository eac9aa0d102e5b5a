//! Frame headers (RFC 6455 §5.2).

use crate::call::call;
use crate::config::ws_role;
use crate::memory::{self, Extent, disjoint};
use crate::status::wl_status;
use wireloom_ws::Opcode;
use wireloom_ws::frame::{HEADER_LEN_MAX, Header};
use wireloom_ws::mask::MaskKey;

/// The longest frame header, in bytes.
pub const WL_FRAME_HEADER_LEN_MAX: usize = 14;
const _: () = assert!(WL_FRAME_HEADER_LEN_MAX == HEADER_LEN_MAX);

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_frame_header {
    /// The length of the payload, in bytes.
    pub payload_len: u64,
    /// 0 continuation, 1 text, 2 binary, 8 Close, 9 Ping, 10 Pong.
    pub opcode: u8,
    /// 1: the last frame of a message.
    pub fin: u8,
    /// The reserved bits: 4 is RSV1, 2 is RSV2, 1 is RSV3.
    pub rsv: u8,
    /// 1: the payload is masked with `mask`.
    pub masked: u8,
    /// The masking key.
    pub mask: [u8; 4],
}

/// Encodes a header. `buffer` has at least `WL_FRAME_HEADER_LEN_MAX` bytes; `len` gets the number that was written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_frame_header_encode(
    header: *const wl_frame_header,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let header = unsafe { memory::read(header)? };
        let opcode = Opcode::from_bits(header.opcode).ok_or(wl_status::InvalidArgument)?;
        if header.rsv > 7 || header.payload_len >> 63 != 0 {
            return Err(wl_status::InvalidArgument);
        }
        let header = Header {
            fin: crate::config::flag(header.fin)?,
            rsv: header.rsv,
            opcode,
            mask: crate::config::flag(header.masked)?.then(|| MaskKey::new(header.mask)),
            payload_len: header.payload_len,
        };
        // RFC 6455 §5.5: control frames are short and not fragmented.
        if opcode.is_control() && (!header.fin || header.payload_len > 125) {
            return Err(wl_status::InvalidArgument);
        }
        let mut bytes = [0; HEADER_LEN_MAX];
        let encoded = header.encode(&mut bytes);
        // SAFETY: as above.
        unsafe { memory::copy_out(&bytes[..encoded], buffer, capacity, len) }
    })
}

/// Decodes the header at the front of `bytes`, which were sent by an end with the role `sender` (a `wl_role`). `rsv_allowed`: the
/// reserved bits of negotiated extensions, 4 for permessage-deflate. `consumed` gets the length of the header, or 0 if more bytes are
/// needed; then `header` is not written. `WL_STATUS_PEER_MISBEHAVED`: the header breaks a rule of RFC 6455 section 5.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_frame_header_decode(
    bytes: *const u8,
    len: usize,
    sender: u32,
    rsv_allowed: u8,
    header: *mut wl_frame_header,
    consumed: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(bytes, len), Extent::of(header, 1), Extent::of(consumed, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (bytes, header, consumed) =
            unsafe { (memory::array(bytes, len)?, memory::out(header)?, memory::out(consumed)?) };
        if rsv_allowed > 7 {
            return Err(wl_status::InvalidArgument);
        }
        consumed.write(0);
        let decoded = Header::decode(bytes, ws_role(sender)?, rsv_allowed);
        if let Some((decoded, used)) = decoded.map_err(|_| wl_status::PeerMisbehaved)? {
            header.write(wl_frame_header {
                payload_len: decoded.payload_len,
                opcode: decoded.opcode as u8,
                fin: decoded.fin.into(),
                rsv: decoded.rsv,
                masked: decoded.mask.is_some().into(),
                mask: decoded.mask.unwrap_or_default().bytes(),
            });
            consumed.write(used);
        }
        Ok(())
    })
}

/// The value of `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` of 24 bytes (RFC 6455 section 4.2.2): 28 bytes, without a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_accept_key(key: *const [u8; 24], accept: *mut [u8; 28]) -> wl_status {
    call(|| {
        disjoint([Extent::of(key, 1), Extent::of(accept, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (key, accept) = unsafe { (memory::read(key)?, memory::out(accept)?) };
        accept.write(wireloom_ws::handshake::accept_key(&key));
        Ok(())
    })
}
