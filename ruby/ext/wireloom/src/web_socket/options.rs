//! Keyword arguments of Ruby as the core's configuration.

use magnus::encoding::EncodingCapable;
use magnus::r_hash::ForEach;
use magnus::{Error, RArray, RHash, RString, Ruby, TryConvert, Value};
use std::time::Duration;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::{Config, Keepalive};

/// The option `name`, when it is given and not nil.
pub(super) fn option<T: TryConvert>(options: RHash, ruby: &Ruby, name: &str) -> Result<Option<T>, Error> {
    options.lookup::<_, Option<T>>(ruby.to_symbol(name))
}

/// `max_message_length`, `max_queued_length` in bytes; `close_timeout`, `ping_after`, `dead_after` in seconds.
pub(super) fn config(ruby: &Ruby, options: RHash) -> Result<Config, Error> {
    let mut config = Config::default();
    if let Some(len) = option::<u64>(options, ruby, "max_message_length")? {
        config.limits.message_len_max = len;
        config.limits.frame_len_max = len;
    }
    if let Some(len) = option(options, ruby, "max_queued_length")? {
        config.limits.queued_len_max = len;
    }
    if let Some(ratio) = option(options, ruby, "max_inflate_ratio")? {
        config.limits.inflate_ratio_max = ratio;
    }
    if let Some(timeout) = seconds(ruby, options, "close_timeout")? {
        config.close_timeout = timeout;
    }
    let ping_after = seconds(ruby, options, "ping_after")?;
    let dead_after = seconds(ruby, options, "dead_after")?;
    if ping_after.is_some() || dead_after.is_some() {
        let ping_after = ping_after.unwrap_or(dead_after.unwrap_or(Duration::from_secs(30)) / 2);
        let dead_after = dead_after.unwrap_or(ping_after * 2);
        config.keepalive = Some(Keepalive { ping_after, dead_after });
    }
    Ok(config)
}

fn seconds(ruby: &Ruby, options: RHash, name: &str) -> Result<Option<Duration>, Error> {
    option::<f64>(options, ruby, name)?
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                Error::new(ruby.exception_arg_error(), format!("{name}: {seconds} is no number of seconds"))
            })
        })
        .transpose()
}

/// `deflate`: true, or a Hash of `level`, `memory_level`, `min_length`, `server_no_context_takeover`,
/// `client_no_context_takeover`, `server_max_window_bits`, `client_max_window_bits`.
pub(super) fn deflate(ruby: &Ruby, options: RHash) -> Result<Option<DeflateConfig>, Error> {
    let Some(value) = option::<Value>(options, ruby, "deflate")? else { return Ok(None) };
    let mut deflate = DeflateConfig::default();
    let Some(given) = RHash::from_value(value) else {
        return Ok(bool::try_convert(value)?.then_some(deflate));
    };
    let level = |name, least, most, default: u8| -> Result<u8, Error> {
        let value = option::<u8>(given, ruby, name)?.unwrap_or(default);
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        let said = format!("deflate: {name} is {value}, but has to be from {least} to {most}");
        Err(Error::new(ruby.exception_arg_error(), said))
    };
    deflate.level = level("level", 0, 9, deflate.level)?;
    deflate.mem_level = level("memory_level", 1, 9, deflate.mem_level)?;
    deflate.server_max_window_bits = level("server_max_window_bits", 8, 15, 15)?;
    deflate.client_max_window_bits = level("client_max_window_bits", 8, 15, 15)?;
    if let Some(len) = option(given, ruby, "min_length")? {
        deflate.min_len = len;
    }
    let flag = |name| Ok::<bool, Error>(option(given, ruby, name)?.unwrap_or(false));
    deflate.server_no_context_takeover = flag("server_no_context_takeover")?;
    deflate.client_no_context_takeover = flag("client_no_context_takeover")?;
    Ok(Some(deflate))
}

/// Header fields, or other pairs of Strings, from a Hash or an Array of pairs. `convert` runs no method of the program: those run before, while
/// no memory is held.
pub(super) fn pairs<T>(
    value: Option<Value>,
    convert: impl Fn(RString) -> Result<T, Error>,
) -> Result<Vec<(T, T)>, Error> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let strings = Ruby::get_with(value).ary_new();
    if let Some(hash) = RHash::from_value(value) {
        hash.foreach(|name: RString, value: RString| {
            strings.push(name)?;
            strings.push(value)?;
            Ok(ForEach::Continue)
        })?;
    } else {
        let list = RArray::try_convert(value)?;
        for at in 0..list.len() {
            let pair: RArray = list.entry(at as isize)?;
            strings.push(pair.entry::<RString>(0)?)?;
            strings.push(pair.entry::<RString>(1)?)?;
        }
    }
    let converted = |at| convert(strings.entry(at)?);
    (0..strings.len() as isize).step_by(2).map(|at| Ok((converted(at)?, converted(at + 1)?))).collect()
}

/// Text as UTF-8. Other encodings than those of `is_utf8_or_bytes` are transcoded.
///
/// # Errors
/// The bytes are no UTF-8 and cannot be transcoded, as `invalid` says.
pub(super) fn text(
    ruby: &Ruby,
    string: RString,
    invalid: impl FnOnce(&Ruby, &dyn std::fmt::Display) -> Error,
) -> Result<String, Error> {
    if is_utf8_or_bytes(ruby, string) {
        return String::from_utf8(bytes(string)).map_err(|error| invalid(ruby, &error));
    }
    string.to_string().map_err(|error| match error.is_kind_of(ruby.exception_encoding_error()) {
        true => invalid(ruby, &error),
        false => error,
    })
}

/// Whether the bytes are taken as they are. Rack hands over ASCII-8BIT, and ENV and files US-ASCII in some locales, whatever the bytes are.
pub(super) fn is_utf8_or_bytes(ruby: &Ruby, string: RString) -> bool {
    let encoding = string.enc_get();
    [ruby.utf8_encindex(), ruby.ascii8bit_encindex(), ruby.usascii_encindex()].contains(&encoding)
}

/// A copy of the bytes of a String.
pub(super) fn bytes(string: RString) -> Vec<u8> {
    // SAFETY: copied at once.
    unsafe { string.as_slice() }.to_vec()
}
