//! The static table (RFC 7541 Appendix A) and the other known names as Ruby Strings, made once: interned, so that they are the
//! very objects that literals in Ruby code are.

use std::sync::OnceLock;

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{RArray, RString, Ruby, Value};
use wireloom_http2::field::Token;
use wireloom_http2::hpack::{STATIC_LEN, static_get};

use super::role::Role;
use super::table::{Field, OVERHEAD};
use crate::held::Registered;
use crate::strings;

pub(crate) struct Statics {
    fields: [Static; STATIC_LEN],
    /// By token; none for [`Token::Unknown`].
    names: Vec<Option<Registered<RString>>>,
}

struct Static {
    name: Registered<RString>,
    value: Registered<RString>,
    /// Both as a frozen Array.
    pair: Registered<RArray>,
    size: usize,
    role: Role,
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
            let (name, value) = (interned(ruby, field.name()), interned(ruby, field.value()));
            Static {
                name,
                value,
                pair: Registered::new(ruby, pair(name.get(), value.get())),
                size: field.name().len() + field.value().len() + OVERHEAD,
                role: Role::of(field.name()),
            }
        });
        let names = (0..=u8::MAX)
            .map_while(Token::from_index)
            .map(|token| (token != Token::Unknown).then(|| interned(ruby, token.name().as_bytes())))
            .collect();
        Self { fields, names }
    }

    /// The field at an index from 1.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Field> {
        let Static { name, value, pair, size, role } = self.fields.get(index.checked_sub(1)?)?;
        Some(Field {
            name: name.get(),
            value: value.get(),
            pair: pair.get().as_raw(),
            size: *size,
            role: *role,
        })
    }

    /// The String of a known name.
    #[inline]
    pub(crate) fn name(&self, token: Token) -> Option<RString> {
        self.names[token as usize].map(|name| name.get())
    }
}

/// A frozen Array of two Strings.
#[inline]
pub(super) fn pair(name: RString, value: RString) -> RArray {
    // SAFETY: two live Strings. Only NoMemoryError is raised.
    unsafe {
        let pair = rb_sys::rb_obj_freeze(rb_sys::rb_assoc_new(name.as_raw(), value.as_raw()));
        RArray::from_value(Value::from_raw(pair)).unwrap_unchecked()
    }
}

fn interned(ruby: &Ruby, bytes: &[u8]) -> Registered<RString> {
    // SAFETY: an interned String is one.
    let string = unsafe {
        let interned = strings::utf8_or_ascii(ruby, bytes).to_interned_str();
        strings::rstring(interned.as_raw())
    };
    Registered::new(ruby, string)
}
