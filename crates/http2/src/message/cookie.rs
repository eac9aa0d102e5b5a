//! Joins the cookie fields of a request (RFC 9113 §8.2.3).

use alloc::vec::Vec;

use crate::field::{FieldList, Token};

/// The cookie of a request as one value. RFC 9113 §8.2.3 allows to split it into several fields for better compression, and demands
/// that they are joined before they are passed to anything other than HTTP/2.
///
/// A single field is borrowed from the list. Several are joined in `buf`, which is cleared.
///
/// ```
/// use wireloom_http2::field::{Field, FieldList, Token};
///
/// let values = [Field::known(Token::Cookie, b"a=b"), Field::known(Token::Cookie, b"c=d")];
/// let fields: FieldList = values.into_iter().collect();
/// assert_eq!(wireloom_http2::message::cookie(&fields, &mut Vec::new()), Some(&b"a=b; c=d"[..]));
/// ```
pub fn cookie<'a>(fields: &'a FieldList, buf: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let mut values = fields.iter().filter(|field| field.token() == Token::Cookie).map(|field| field.value());
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(first) };
    buf.clear();
    buf.extend_from_slice(first);
    for value in core::iter::once(second).chain(values) {
        buf.extend_from_slice(b"; ");
        buf.extend_from_slice(value);
    }
    Some(buf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Field;

    #[test]
    fn joins_values_in_order() {
        // RFC 9113 §8.2.3: joined with 0x3b, 0x20.
        let mut fields = FieldList::new();
        let mut buf = b"old".to_vec();
        assert_eq!(cookie(&fields, &mut buf), None);
        fields.push(Field::known(Token::Cookie, b"a=1"));
        assert_eq!(cookie(&fields, &mut buf), Some(&b"a=1"[..]));
        fields.push(Field::new(b"x", b"y"));
        fields.push(Field::known(Token::Cookie, b"b=2"));
        fields.push(Field::known(Token::Cookie, b"c=3"));
        assert_eq!(cookie(&fields, &mut buf), Some(&b"a=1; b=2; c=3"[..]));
    }
}
