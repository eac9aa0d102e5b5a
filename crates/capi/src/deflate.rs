//! The compression of permessage-deflate alone (RFC 7692 §7.2), for those who frame messages themselves.

use crate::call::call;
use crate::config::{deflate_config, flag, wl_deflate_config, wl_deflate_params, ws_role};
use crate::handle::Table;
use crate::memory::{self, Extent, disjoint};
use crate::slice::wl_slice;
use crate::status::wl_status;
use wireloom_ws::deflate::{Compressor, Decompressor, InflateLimit};

/// Compresses the messages of one direction.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_compressor {
    /// The number of the compressor; 0 is none.
    pub id: u64,
}

/// Decompresses the messages of one direction.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_decompressor {
    /// The number of the decompressor; 0 is none.
    pub id: u64,
}

struct Deflate {
    compressor: Compressor,
    out: Vec<u8>,
}

static COMPRESSORS: Table<Deflate> = Table::new(2);
static DECOMPRESSORS: Table<Decompressor> = Table::new(3);

/// A compressor for the end `role` (a `wl_role`). `config` may be null: the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_compressor_new(
    role: u32,
    params: *const wl_deflate_params,
    config: *const wl_deflate_config,
    compressor: *mut wl_compressor,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (params, config, slot) =
            unsafe { (memory::read(params)?, deflate_config(config)?, memory::out(compressor)?) };
        let compressor = Compressor::new(ws_role(role)?, &params.negotiated()?, &config);
        slot.write(wl_compressor { id: COMPRESSORS.insert(Deflate { compressor, out: Vec::new() })? });
        Ok(())
    })
}

/// Compresses a chunk of a message, the last one with `fin` 1. `out` gets the compressed bytes, which are the payload of the next frame
/// and are valid until the next call with this compressor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_compressor_compress(
    compressor: wl_compressor,
    chunk: *const u8,
    len: usize,
    fin: u8,
    out: *mut wl_slice,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(chunk, len), Extent::of(out, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (chunk, slot) = unsafe { (memory::array(chunk, len)?, memory::out(out)?) };
        let fin = flag(fin)?;
        COMPRESSORS.with(compressor.id, |Deflate { compressor, out }| {
            out.clear();
            compressor.compress_chunk(chunk, fin, out);
            slot.write(wl_slice::new(out));
            Ok(())
        })
    })
}

/// Frees a compressor. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_compressor_free(compressor: wl_compressor) -> wl_status {
    call(|| COMPRESSORS.remove(compressor.id))
}

/// A decompressor for the end `role` (a `wl_role`), which decompresses what the other end sends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_decompressor_new(
    role: u32,
    params: *const wl_deflate_params,
    decompressor: *mut wl_decompressor,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (params, slot) = unsafe { (memory::read(params)?, memory::out(decompressor)?) };
        let decompressor = Decompressor::new(ws_role(role)?, &params.negotiated()?);
        slot.write(wl_decompressor { id: DECOMPRESSORS.insert(decompressor)? });
        Ok(())
    })
}

/// Decompresses the next bytes of a message into `buffer`. `fin` 1: the message ends with these bytes. `message_len_max`: the longest
/// message, in bytes. `consumed` and `produced` get the number of bytes that were read and written.
///
/// `WL_STATUS_MORE`: the buffer is full and there is more output; call again with the remaining bytes, which may be none, and the same
/// `fin`. `WL_STATUS_PEER_MISBEHAVED`: the bytes are not valid. `WL_STATUS_LIMIT_EXCEEDED`: the message is too long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_decompressor_decompress(
    decompressor: wl_decompressor,
    bytes: *const u8,
    len: usize,
    fin: u8,
    message_len_max: usize,
    buffer: *mut u8,
    capacity: usize,
    consumed: *mut usize,
    produced: *mut usize,
) -> wl_status {
    call(|| {
        let [input, output] = [Extent::of(bytes, len), Extent::of(buffer, capacity)];
        disjoint([input, output, Extent::of(consumed, 1), Extent::of(produced, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (input, consumed, produced) =
            unsafe { (memory::array(bytes, len)?, memory::out(consumed)?, memory::out(produced)?) };
        consumed.write(0);
        produced.write(0);
        let fin = flag(fin)?;
        if capacity == 0 {
            return Err(wl_status::BufferTooSmall);
        }
        // SAFETY: as above. The core writes into initialised memory only, and the caller's buffer may not be.
        let buffer = unsafe {
            let room = memory::out_array(buffer, capacity)?;
            room.as_mut_ptr().write_bytes(0, capacity);
            memory::array_mut(buffer, capacity)?
        };
        DECOMPRESSORS.with(decompressor.id, |decompressor| {
            let limit = InflateLimit::new(message_len_max);
            let step = decompressor.step(input, fin, buffer, &limit).map_err(|error| match error {
                wireloom_ws::deflate::InflateError::Corrupt => wl_status::PeerMisbehaved,
                _ => wl_status::LimitExceeded,
            })?;
            consumed.write(step.consumed);
            produced.write(step.produced);
            Ok(if step.more { wl_status::More } else { wl_status::Ok })
        })
    })
}

/// Frees a decompressor. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_decompressor_free(decompressor: wl_decompressor) -> wl_status {
    call(|| DECOMPRESSORS.remove(decompressor.id))
}
