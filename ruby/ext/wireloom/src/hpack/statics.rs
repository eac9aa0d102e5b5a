//! The static table (RFC 7541 Appendix A) and the other known names as Ruby Strings, made once: interned, so that they are the
//! very objects that literals in Ruby code are.

use std::sync::OnceLock;

use magnus::{RString, Ruby};
use wireloom_http2::field::Token;
use wireloom_http2::hpack::{STATIC_LEN, static_get};

use crate::held::Registered;
use crate::strings;

pub(crate) struct Statics {
    fields: [(Registered<RString>, Registered<RString>); STATIC_LEN],
    /// By token; none for [`Token::Unknown`].
    names: Vec<Option<Registered<RString>>>,
}

static STATICS: OnceLock<Statics> = OnceLock::new();

/// Called once, while the library loads.
pub(super) fn load(ruby: &Ruby) {
    let _ = STATICS.set(Statics::new(ruby));
}

/// # Panics
/// Before [`load`].
#[inline]
pub(crate) fn statics() -> &'static Statics {
    STATICS.get().expect("set while the library loads")
}

impl Statics {
    fn new(ruby: &Ruby) -> Self {
        let fields = std::array::from_fn(|at| {
            let field = static_get(at + 1).expect("the table has no holes");
            (interned(ruby, field.name()), interned(ruby, field.value()))
        });
        let names = (0..=u8::MAX)
            .map_while(Token::from_index)
            .map(|token| (token != Token::Unknown).then(|| interned(ruby, token.name().as_bytes())))
            .collect();
        Self { fields, names }
    }

    /// The field at an index from 1.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<(RString, RString)> {
        let (name, value) = self.fields.get(index.checked_sub(1)?)?;
        Some((name.get(), value.get()))
    }

    /// The String of a known name.
    #[inline]
    pub(crate) fn name(&self, token: Token) -> Option<RString> {
        self.names[token as usize].map(|name| name.get())
    }
}

fn interned(ruby: &Ruby, bytes: &[u8]) -> Registered<RString> {
    // SAFETY: an interned String is one.
    let string = unsafe {
        let interned = strings::utf8_or_ascii(ruby, bytes).to_interned_str();
        strings::rstring(magnus::rb_sys::AsRawValue::as_raw(interned))
    };
    Registered::new(ruby, string)
}
