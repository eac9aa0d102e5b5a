//! Messages that are framed once and sent to many.

use crate::call::call;
use crate::config::{deflate_config, message_kind, window_bits, wl_deflate_config};
use crate::handle::Table;
use crate::memory;
use crate::slice::wl_slice;
use crate::status::wl_status;
use wireloom_ws::{FrameCompressor, Kind, PreparedFrame, utf8};

/// A message of a server, framed once and sent to many connections. It does not change: any number of threads may use it at once, and
/// only freeing it meanwhile is `WL_STATUS_BUSY`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_prepared {
    /// The number of the message; 0 is none.
    pub id: u64,
}

static PREPARED: Table<PreparedFrame> = Table::new(4);

/// The message with this number; a reference, not a copy.
pub(crate) fn find(prepared: wl_prepared) -> Result<PreparedFrame, wl_status> {
    PREPARED.with_shared(prepared.id, |frame| Ok(frame.clone()))
}

/// Prepares a message. `kind` is a `wl_kind`. The bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_prepared_new(
    kind: u32,
    data: *const u8,
    len: usize,
    prepared: *mut wl_prepared,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (data, slot) = unsafe { (memory::array(data, len)?, memory::out(prepared)?) };
        let frame = match message_kind(kind)? {
            Kind::Text => PreparedFrame::text(utf8::text(data).map_err(|_| wl_status::InvalidUtf8)?),
            Kind::Binary => PreparedFrame::binary(data),
        };
        slot.write(wl_prepared { id: PREPARED.insert(frame)? });
        Ok(())
    })
}

/// The same message compressed for connections with this window, which `wl_ws_prepared_window_bits` returns. `config` may be null: the
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_prepared_compress(
    prepared: wl_prepared,
    bits: u8,
    config: *const wl_deflate_config,
    compressed: *mut wl_prepared,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (config, slot) = unsafe { (deflate_config(config)?, memory::out(compressed)?) };
        let mut compressor = FrameCompressor::new(window_bits(bits)?, &config);
        let frame = find(prepared)?.compressed(&mut compressor);
        slot.write(wl_prepared { id: PREPARED.insert(frame)? });
        Ok(())
    })
}

/// The frame as bytes, for those who write it themselves: valid until the message is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_prepared_bytes(prepared: wl_prepared, bytes: *mut wl_slice) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(bytes)? };
        PREPARED.with_shared(prepared.id, |frame| {
            slot.write(wl_slice::new(frame.as_bytes()));
            Ok(())
        })
    })
}

/// Frees a message; connections that have queued it keep its bytes. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_prepared_free(prepared: wl_prepared) -> wl_status {
    call(|| PREPARED.remove(prepared.id))
}
