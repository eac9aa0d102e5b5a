//! The static table (RFC 7541 Appendix A) and the other known names as Ruby Strings, made once: interned, so that they are the
//! very objects that literals in Ruby code are.

use std::sync::OnceLock;

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{RString, Ruby, Value};
use rb_sys::VALUE;
use wireloom_http2::field::Token;
use wireloom_http2::hpack::{STATIC_LEN, static_get};

use crate::strings;

pub(crate) struct Statics {
    fields: [(VALUE, VALUE); STATIC_LEN],
    /// By token; 0 for [`Token::Unknown`].
    names: Vec<VALUE>,
}

static STATICS: OnceLock<Statics> = OnceLock::new();

/// Set when the extension is loaded.
#[inline]
pub(crate) fn statics() -> &'static Statics {
    STATICS.get_or_init(|| Statics::new(&Ruby::get().expect("called from Ruby")))
}

impl Statics {
    fn new(ruby: &Ruby) -> Self {
        let fields = std::array::from_fn(|at| {
            let field = static_get(at + 1).expect("the table has no holes");
            (interned(ruby, field.name()), interned(ruby, field.value()))
        });
        let names = (0..=u8::MAX)
            .map_while(Token::from_index)
            .map(|token| if token == Token::Unknown { 0 } else { interned(ruby, token.name().as_bytes()) })
            .collect();
        Self { fields, names }
    }

    /// The field at an index from 1.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<(RString, RString)> {
        let (name, value) = self.fields.get(index.checked_sub(1)?)?;
        Some((string(*name), string(*value)))
    }

    /// The String of a known name.
    #[inline]
    pub(crate) fn name(&self, token: Token) -> Option<RString> {
        (token != Token::Unknown).then(|| string(self.names[token as usize]))
    }
}

fn interned(ruby: &Ruby, bytes: &[u8]) -> VALUE {
    let string = strings::utf8_or_ascii(bytes).to_interned_str();
    ruby.gc_register_mark_object(string);
    string.as_raw()
}

fn string(value: VALUE) -> RString {
    // SAFETY: made by `interned`, which registered it for good.
    unsafe { RString::from_value(Value::from_raw(value)).unwrap_unchecked() }
}
