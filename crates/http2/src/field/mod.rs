//! Fields: [`Field`], a name and a value; [`Token`], the known names; [`FieldList`], the fields of a message in one arena; and
//! the characters that names and values may contain (RFC 9113 §8.2.1).
//!
//! [`crate::message`] checks which fields a message contains (RFC 9113 §8.3).

mod list;
mod rules;
mod token;

pub(crate) use list::ARENA_KEPT;
pub use list::{FieldLimits, FieldList, Iter, Place, PlacedField};
pub use rules::Malformed;
pub(crate) use rules::{check_name, check_value, check_value_edges, is_name_byte, is_value_byte};
pub use token::Token;

/// A borrowed field of a message: a lower-case name and a value.
///
/// Invariant: `token` is [`Token::of`] the name, so that later checks match on it and compare no strings.
///
/// ```
/// use wireloom_http2::field::{Field, Token};
///
/// let field = Field::new(b"content-type", b"text/plain");
/// assert_eq!(field.token(), Token::ContentType);
/// assert_eq!(Field::known(Token::Method, b"GET").name(), b":method");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    name: &'a [u8],
    value: &'a [u8],
    token: Token,
    sensitive: bool,
}

impl<'a> Field<'a> {
    /// A field with any name. Its token is looked up.
    #[inline]
    pub fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self { name, value, token: Token::of(name), sensitive: false }
    }

    /// A field with the name of a token.
    ///
    /// The name of [`Token::Unknown`] is empty, which no peer accepts.
    #[inline]
    pub const fn known(token: Token, value: &'a [u8]) -> Self {
        Self { name: token.name().as_bytes(), value, token, sensitive: false }
    }

    /// The same field, marked as sensitive or not. A sensitive field is encoded as a literal that is never indexed, also when an
    /// intermediary forwards it (RFC 7541 §7.1.3).
    #[inline]
    #[must_use]
    pub const fn with_sensitive(self, sensitive: bool) -> Self {
        Self { sensitive, ..self }
    }

    pub(crate) const fn from_parts(token: Token, name: &'a [u8], value: &'a [u8], sensitive: bool) -> Self {
        Self { name, value, token, sensitive }
    }

    /// The name. It is in lower case if it was received and the list is not malformed.
    #[inline]
    pub const fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The value.
    #[inline]
    pub const fn value(&self) -> &'a [u8] {
        self.value
    }

    /// The token of the name.
    #[inline]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Whether the field must never be indexed: the peer or the caller marked it as sensitive.
    #[inline]
    pub const fn is_sensitive(&self) -> bool {
        self.sensitive
    }

    /// Whether the name begins with a colon (RFC 9113 §8.3).
    #[inline]
    pub fn is_pseudo(&self) -> bool {
        self.name.first() == Some(&b':')
    }

    /// The size of the field in a list: name, value and 32 bytes (RFC 9113 §6.5.2).
    #[inline]
    pub const fn list_size(&self) -> usize {
        self.name.len().saturating_add(self.value.len()).saturating_add(32)
    }

    /// Checks the characters of name and value.
    ///
    /// # Errors
    /// The first rule of RFC 9113 §8.2.1 that the field violates.
    pub fn check(&self) -> Result<(), Malformed> {
        if self.token == Token::Unknown {
            check_name(self.name)?;
        }
        check_value(self.value)
    }
}

impl core::fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: ", self.name.escape_ascii())?;
        if self.sensitive { f.write_str("(sensitive)") } else { write!(f, "{}", self.value.escape_ascii()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn recognises_known_names() {
        let field = Field::new(b"cookie", b"a=b");
        assert_eq!(field.token(), Token::Cookie);
        assert_eq!(field, Field::known(Token::Cookie, b"a=b"));
        assert_eq!(Field::new(b"x-cookie", b"a=b").token(), Token::Unknown);
    }

    #[test]
    fn counts_overhead_in_list_size() {
        // RFC 9113 §6.5.2: the length of name and value plus 32.
        assert_eq!(Field::new(b"custom-key", b"custom-value").list_size(), 54);
    }

    #[test]
    fn hides_sensitive_values_from_logs() {
        let field = Field::new(b"authorization", b"hunter2");
        assert_eq!(format!("{field:?}"), "authorization: hunter2");
        assert_eq!(format!("{:?}", field.with_sensitive(true)), "authorization: (sensitive)");
    }

    #[test]
    fn checks_name_and_value() {
        assert_eq!(Field::new(b"a", b"b").check(), Ok(()));
        assert_eq!(Field::new(b"A", b"b").check(), Err(Malformed::NameCharacter));
        assert_eq!(Field::known(Token::Via, b"b\n").check(), Err(Malformed::ValueCharacter));
    }
}
