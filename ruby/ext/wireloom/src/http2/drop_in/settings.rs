//! SETTINGS of this side, and how a connection begins (RFC 9113 §3.4, §6.5).

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RHash, Ruby, TryConvert, Value};
use rb_sys::VALUE;

use super::connection::{Connection, Phase, TABLE_SIZE_DEFAULT, WINDOW_DEFAULT, call_own, is_plain};
use super::frame::{Frame, Kind, converted, symbol, value};
use super::framer::{Pairs, settings_pairs};
use super::listeners::{emit, listens};
use super::names::{Name, sym};
use super::send::{connection_error, send_own};
use super::stream::WINDOW_MAX;
use crate::held::{Held, Owner};
use crate::hpack::encode;
use crate::hpack::table::Table;

/// One of the settings, an `HTTP2::Settings`.
pub(crate) fn get(settings: Held, key: VALUE) -> Result<Value, Error> {
    settings.value().funcall_public("[]", (value(key),))
}

/// Changes one of the settings.
pub(crate) fn set(settings: Held, key: VALUE, number: VALUE) -> Result<(), Error> {
    settings.value().funcall_public::<_, _, Value>("[]=", (value(key), value(number))).map(|_| ())
}

/// Makes a connection of these settings; `encoding` holds `:huffman`, `:index` and `:table_size`.
pub(crate) fn set_up(
    ruby: &Ruby,
    this: Obj<Connection>,
    is_client: bool,
    encoding: RHash,
    local: Value,
    remote: Value,
) -> Result<(), Error> {
    let owner = Owner::of(this);
    let number = |key: VALUE| i64::try_convert(local.funcall_public::<_, _, Value>("[]", (value(key),))?);
    let sym = sym();
    let policy = encode::Policy { fill_path: true, ..crate::hpack::policy(ruby, encoding)? };
    this.is_client.set(is_client);
    this.phase.set(if is_client { Phase::WaitingPreface } else { Phase::WaitingMagic });
    this.stream_id.set(if is_client { 1 } else { 2 });
    this.local_settings.set(Held::new(owner, local.as_raw()));
    this.remote_settings.set(Held::new(owner, remote.as_raw()));
    this.pending_settings.set(Held::new(owner, ruby.ary_new().as_raw()));
    let window = number(sym.settings_initial_window_size)?;
    this.local_window.set(window);
    this.local_window_limit.set(window);
    this.local_max_frame_size.set(number(sym.settings_max_frame_size)?.max(0) as usize);
    this.local_max_streams.set(number(sym.settings_max_concurrent_streams)?);
    this.list_size_max.set(number(sym.settings_max_header_list_size)?.max(0) as usize);
    // Until SETTINGS are acknowledged, both ends have to do with the default (RFC 9113 §4.3.1). An encoder that is to use
    // less says so in its first block.
    this.compressor.with(|table| *table = Table::new(TABLE_SIZE_DEFAULT));
    this.decompressor.with(|table| *table = Table::new(TABLE_SIZE_DEFAULT));
    this.policy.set(policy);
    Ok(())
}

/// Whether these settings may be sent by that role (RFC 9113 §6.5.2).
pub(crate) fn validate_settings(
    ruby: &Ruby,
    this: Obj<Connection>,
    by_client: bool,
    pairs: &Pairs,
) -> Result<(), Error> {
    let sym = sym();
    pairs.each(|key, number| {
        let Some(number) = converted::<i64>(value(number))? else { return Ok(()) };
        let (valid, kind) = if key == sym.settings_enable_push {
            (number == 0 || by_client && number == 1, sym.protocol_error)
        } else if key == sym.settings_initial_window_size {
            (number <= WINDOW_MAX, sym.flow_control_error)
        } else if key == sym.settings_max_frame_size {
            ((16_384..=16_777_215).contains(&number), sym.protocol_error)
        } else if key == sym.settings_enable_connect_protocol || key == sym.settings_no_rfc7540_priorities {
            // RFC 8441 §3, RFC 9218 §2.1.
            (number == 0 || number == 1, sym.protocol_error)
        } else {
            return Ok(());
        };
        if !valid {
            return connection_error(
                ruby,
                this,
                kind,
                Some(&format_args!("invalid {} value", Name(symbol(key)))),
                None,
            );
        }
        Ok(())
    })
}

/// Sends SETTINGS: a Hash or a list of pairs. They hold once acknowledged.
pub(crate) fn settings(ruby: &Ruby, this: Obj<Connection>, payload: Value) -> Result<(), Error> {
    let pairs = settings_pairs(ruby, payload)?;
    validate_settings(ruby, this, this.is_client.get(), &pairs)?;
    // Before they are sent: a peer in the same process answers at once.
    RArray::try_convert(this.pending_settings.get().value())?.push(payload)?;
    this.settings_unacknowledged.set(this.settings_unacknowledged.get() + 1);
    let mut frame = Frame::new(Kind::Settings, 0);
    frame.payload = payload.as_raw();
    send_own(ruby, this, &mut frame)
}

/// The settings that differ from what every peer assumes, and the window of the connection, which SETTINGS cannot change.
fn send_first_settings(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    let local: RHash = this.local_settings.get().value().funcall_public("to_h", ())?;
    let payload = ruby.ary_new();
    local.foreach(|key: Value, number: Value| {
        let known = sym().settings().iter().any(|(_, name)| *name == key.as_raw());
        if known && !number.is_nil() && converted(number)? != default_setting(key.as_raw()) {
            payload.push(ruby.ary_new_from_values(&[key, number]))?;
        }
        Ok(magnus::r_hash::ForEach::Continue)
    })?;
    if is_plain(this) {
        settings(ruby, this, payload.as_value())?;
    } else {
        call_own(this, "settings", &[payload.as_value()])?;
    }
    // RFC 9113 §6.9.2: the window of the connection grows by WINDOW_UPDATE alone.
    let more = this.local_window_limit.get() - WINDOW_DEFAULT;
    if more > 0 {
        let mut frame = Frame::new(Kind::WindowUpdate, 0);
        frame.increment = Some(more);
        send_own(ruby, this, &mut frame)?;
    }
    Ok(())
}

fn default_setting(key: VALUE) -> Option<i64> {
    let sym = sym();
    [
        (sym.settings_header_table_size, 4096),
        (sym.settings_enable_push, 1),
        (sym.settings_max_concurrent_streams, 0x7fff_ffff),
        (sym.settings_initial_window_size, WINDOW_DEFAULT),
        (sym.settings_max_frame_size, 16_384),
        (sym.settings_max_header_list_size, 0x7fff_ffff),
        (sym.settings_enable_connect_protocol, 0),
        (sym.settings_no_rfc7540_priorities, 0),
    ]
    .into_iter()
    .find_map(|(name, number)| (name == key).then_some(number))
}

/// Begins the connection: a client's magic and SETTINGS, once.
pub(crate) fn send_connection_preface(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    if !this.is_client.get() || this.phase.get() != Phase::WaitingPreface {
        return Ok(());
    }
    this.phase.set(Phase::Connected);
    if listens(this, sym().frame) {
        let magic = crate::strings::binary(ruby, super::MAGIC);
        emit(this, sym().frame, &[magic.as_raw()])?;
    }
    send_first_settings(ruby, this)
}

/// A server's side of the same, when it has seen the magic.
pub(crate) fn magic_received(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    this.phase.set(Phase::WaitingPreface);
    send_first_settings(ruby, this)
}

pub(crate) fn preface_own(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    if !this.is_client.get() || this.phase.get() != Phase::WaitingPreface {
        return Ok(());
    }
    if is_plain(this) {
        send_connection_preface(ruby, this)
    } else {
        call_own(this, "send_connection_preface", &[])
    }
}
