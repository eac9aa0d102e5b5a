//! HPACK alone (RFC 7541).

use crate::call::call;
use crate::config::flag;
use crate::handle::Table;
use crate::memory::{self, Extent, disjoint};
use crate::slice::{self, wl_field, wl_slice};
use crate::status::wl_status;
use core::mem::MaybeUninit;
use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder};

/// Decodes the field blocks of one direction of a connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_hpack_decoder {
    /// The number of the decoder; 0 is none.
    pub id: u64,
}

/// Encodes the field blocks of one direction of a connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_hpack_encoder {
    /// The number of the encoder; 0 is none.
    pub id: u64,
}

struct FieldDecoder {
    decoder: Decoder,
    limits: FieldLimits,
    fields: FieldList,
    /// A block could not be decoded: the tables of the two ends may differ.
    failed: bool,
}

struct FieldEncoder {
    encoder: Encoder,
    out: Vec<u8>,
}

static DECODERS: Table<FieldDecoder> = Table::new(5);
static ENCODERS: Table<FieldEncoder> = Table::new(6);

/// The fields of the caller, after all of their pointers were checked. They do not overlap `outputs`.
pub(crate) unsafe fn fields<'a>(
    fields: *const wl_field,
    count: usize,
    outputs: &[Extent],
) -> Result<Fields<'a>, wl_status> {
    // SAFETY: the caller's promise is passed on.
    let fields = unsafe { slice::fields(fields, count, outputs)? };
    for field in fields {
        // SAFETY: as above.
        unsafe { (field.name.bytes()?, field.value.bytes()?) };
        flag(field.sensitive)?;
    }
    Ok(Fields { fields: fields.iter() })
}

/// Iterates over fields that were checked.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    fields: core::slice::Iter<'a, wl_field>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    #[inline]
    fn next(&mut self) -> Option<Field<'a>> {
        let field = self.fields.next()?;
        // SAFETY: `fields` has checked both, and the caller changes nothing during the call.
        let (name, value) = unsafe { (field.name.bytes(), field.value.bytes()) };
        let [name, value] = [name, value].map(|bytes| bytes.ok().flatten().unwrap_or_default());
        Some(Field::new(name, value).with_sensitive(field.sensitive == 1))
    }
}

/// Writes fields from the first on until the array is full; returns their number.
#[inline]
fn write_fields<'a>(fields: impl Iterator<Item = Field<'a>>, out: &mut [MaybeUninit<wl_field>]) -> usize {
    let mut written = 0;
    for (slot, field) in out.iter_mut().zip(fields) {
        slot.write(wl_field {
            name: wl_slice::new(field.name()),
            value: wl_slice::new(field.value()),
            sensitive: field.is_sensitive().into(),
        });
        written += 1;
    }
    written
}

/// A decoder. `table_size_max`: SETTINGS_HEADER_TABLE_SIZE of this end, 4,096 by default. `list_size_max` and `fields_max` bound the
/// fields of a block: in bytes as RFC 9113 section 6.5.2 counts them, and in number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_hpack_decoder_new(
    table_size_max: u32,
    list_size_max: u32,
    fields_max: usize,
    decoder: *mut wl_hpack_decoder,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(decoder)? };
        let limits = FieldLimits::new(list_size_max, fields_max);
        let decoder = Decoder::new(table_size_max);
        let decoder = FieldDecoder { decoder, limits, fields: FieldList::new(), failed: false };
        slot.write(wl_hpack_decoder { id: DECODERS.insert(decoder)? });
        Ok(())
    })
}

/// Changes SETTINGS_HEADER_TABLE_SIZE, once the peer has acknowledged the setting.
#[unsafe(no_mangle)]
pub extern "C" fn wl_hpack_decoder_set_table_size_max(
    decoder: wl_hpack_decoder,
    table_size_max: u32,
) -> wl_status {
    call(|| {
        DECODERS.with(decoder.id, |FieldDecoder { decoder, .. }| {
            decoder.set_table_size_max(table_size_max);
            Ok(())
        })
    })
}

/// Decodes a complete block. `fields` gets the fields, and `fields_len` their number. They are valid until the next call with this
/// decoder.
///
/// `WL_STATUS_BUFFER_TOO_SMALL`: `fields_len` is the number of fields, of which the first `capacity` were stored;
/// `wl_hpack_decoder_fields` returns the others. The block was decoded. `WL_STATUS_LIMIT_EXCEEDED`: the block was decoded, but a limit
/// was exceeded, and fields are missing; a server answers 431. `WL_STATUS_PEER_MISBEHAVED`: the block is invalid or several times over
/// the limit, and was not decoded: a connection error of type COMPRESSION_ERROR. The tables of the two ends may differ from then on, and
/// each later call returns the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_hpack_decoder_decode(
    decoder: wl_hpack_decoder,
    block: *const u8,
    len: usize,
    fields: *mut wl_field,
    capacity: usize,
    fields_len: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(block, len), Extent::of(fields, capacity), Extent::of(fields_len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (block, out, fields_len) = unsafe {
            (memory::array(block, len)?, memory::out_array(fields, capacity)?, memory::out(fields_len)?)
        };
        fields_len.write(0);
        DECODERS.with(decoder.id, |FieldDecoder { decoder, limits, fields, failed }| {
            *failed = *failed || decoder.decode(block, limits, fields).is_err();
            if *failed {
                return Err(wl_status::PeerMisbehaved);
            }
            fields_len.write(fields.len());
            let written = write_fields(fields.iter(), out);
            match () {
                () if fields.too_large() => Err(wl_status::LimitExceeded),
                () if written < fields.len() => Err(wl_status::BufferTooSmall),
                () => Ok(()),
            }
        })
    })
}

/// The fields of the last block from `first` on. `fields_len` gets the number that was stored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_hpack_decoder_fields(
    decoder: wl_hpack_decoder,
    first: usize,
    fields: *mut wl_field,
    capacity: usize,
    fields_len: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(fields, capacity), Extent::of(fields_len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (out, fields_len) = unsafe { (memory::out_array(fields, capacity)?, memory::out(fields_len)?) };
        DECODERS.with(decoder.id, |FieldDecoder { fields, .. }| {
            fields_len.write(write_fields(fields.iter().skip(first), out));
            Ok(())
        })
    })
}

/// Frees a decoder. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_hpack_decoder_free(decoder: wl_hpack_decoder) -> wl_status {
    call(|| DECODERS.remove(decoder.id))
}

/// An encoder with a table of 4,096 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_hpack_encoder_new(encoder: *mut wl_hpack_encoder) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(encoder)? };
        let encoder = FieldEncoder { encoder: Encoder::new(), out: Vec::new() };
        slot.write(wl_hpack_encoder { id: ENCODERS.insert(encoder)? });
        Ok(())
    })
}

/// The peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn wl_hpack_encoder_set_table_size_max(
    encoder: wl_hpack_encoder,
    table_size_max: u32,
) -> wl_status {
    call(|| {
        ENCODERS.with(encoder.id, |FieldEncoder { encoder, .. }| {
            encoder.set_table_size_max(table_size_max);
            Ok(())
        })
    })
}

/// Encodes fields. `block` gets the block, which is valid until the next call with this encoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_hpack_encoder_encode(
    encoder: wl_hpack_encoder,
    fields: *const wl_field,
    count: usize,
    block: *mut wl_slice,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (fields, slot) =
            unsafe { (self::fields(fields, count, &[Extent::of(block, 1)])?, memory::out(block)?) };
        ENCODERS.with(encoder.id, |FieldEncoder { encoder, out }| {
            out.clear();
            encoder.encode(fields, out);
            slot.write(wl_slice::new(out));
            Ok(())
        })
    })
}

/// Frees an encoder. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_hpack_encoder_free(encoder: wl_hpack_encoder) -> wl_status {
    call(|| ENCODERS.remove(encoder.id))
}
