//! The grammar of `Sec-WebSocket-Extensions` (RFC 6455 §9.1): the extensions that are offered or accepted, with their
//! parameters.
//!
//! ```text
//! extension-list  = 1#extension                                  a, b; x, b; y="z"
//! extension       = token *( ";" extension-param )               b; server_max_window_bits=10; x
//! extension-param = token [ "=" ( token | quoted-string ) ]      the unquoted string must be a token, too
//! ```
//!
//! Unknown names and repeated parameters are kept: each extension defines their meaning (permessage-deflate: RFC 7692 §7, in
//! [`deflate`](crate::deflate)).

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::token::{is_token, is_token_byte};

/// One extension in a list: an offer when a client sent it, an agreement when a server did.
///
/// Names are compared byte by byte: nothing in RFC 6455 makes the case of an extension's name insignificant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// The name; a token.
    pub name: &'a str,
    /// The parameters in their order, repeated ones included.
    pub params: Vec<Param<'a>>,
}

/// One parameter of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// The name; a token.
    pub name: &'a str,
    /// The value, without quotes and backslashes; a token. `None` when the parameter has no `=`.
    pub value: Option<Cow<'a, str>>,
}

/// A violation of the grammar of `Sec-WebSocket-Extensions`. Offsets count bytes of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtensionsError {
    /// The list is empty (RFC 6455 §9.1: `1#extension`).
    Empty,
    /// Not the name of an extension.
    ExpectedName {
        /// Its position.
        offset: usize,
    },
    /// Not the name of a parameter, after a `;`.
    ExpectedParam {
        /// Its position.
        offset: usize,
    },
    /// Not the value of a parameter, after a `=`.
    ExpectedValue {
        /// Its position.
        offset: usize,
    },
    /// Neither `;` nor `,` nor the end after a name or a value.
    ExpectedSeparator {
        /// Its position.
        offset: usize,
    },
    /// A quoted value without a closing quote.
    UnclosedQuote {
        /// The position of the opening quote.
        offset: usize,
    },
    /// A quoted value that is not a token when unquoted (RFC 6455 §9.1: it MUST be).
    QuotedNotToken {
        /// The position of the opening quote.
        offset: usize,
    },
}

impl fmt::Display for ExtensionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the list is empty"),
            Self::ExpectedName { offset } => write!(f, "expected an extension's name at byte {offset}"),
            Self::ExpectedParam { offset } => write!(f, "expected a parameter's name at byte {offset}"),
            Self::ExpectedValue { offset } => write!(f, "expected a parameter's value at byte {offset}"),
            Self::ExpectedSeparator { offset } => write!(f, "expected a separator at byte {offset}"),
            Self::UnclosedQuote { offset } => write!(f, "the quote at byte {offset} is not closed"),
            Self::QuotedNotToken { offset } => write!(f, "the quoted value at byte {offset} is not a token"),
        }
    }
}

impl core::error::Error for ExtensionsError {}

/// The extensions that the value of one `Sec-WebSocket-Extensions` line lists, in order.
///
/// ```
/// use wireloom_ws::handshake::extensions::parse;
///
/// let list = parse(r#"permessage-deflate; client_max_window_bits; server_max_window_bits="10", x-mux"#)?;
/// assert_eq!(list.len(), 2);
/// assert_eq!(list[0].params().collect::<Vec<_>>(), [
///     ("client_max_window_bits", None),
///     ("server_max_window_bits", Some("10")),
/// ]);
/// # Ok::<(), wireloom_ws::handshake::extensions::ExtensionsError>(())
/// ```
///
/// # Errors
/// The value breaks the grammar, or its list is empty.
pub fn parse(header_value: &str) -> Result<Vec<Extension<'_>>, ExtensionsError> {
    parse_lines([header_value])
}

/// The extensions that several `Sec-WebSocket-Extensions` lines list, in order, as if commas joined the lines (RFC 6455 §9.1). Without
/// lines the list is empty, which is not an error.
///
/// # Errors
/// A line breaks the grammar (offsets count bytes of that line), or there are lines and all of them are empty.
pub fn parse_lines<'a>(
    lines: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<Extension<'a>>, ExtensionsError> {
    let mut extensions = Vec::new();
    let mut any_line = false;
    for line in lines {
        any_line = true;
        Parser { text: line, offset: 0 }.list(&mut extensions)?;
    }
    // RFC 6455 §9.1: `1#extension`; null elements are allowed (RFC 2616 §2.1), but not a list of null elements only.
    if any_line && extensions.is_empty() { Err(ExtensionsError::Empty) } else { Ok(extensions) }
}

impl<'a> Extension<'a> {
    /// An extension without parameters.
    pub fn new(name: &'a str) -> Self {
        Self { name, params: Vec::new() }
    }

    /// The parameters as names and values, in order.
    pub fn params(&self) -> impl Iterator<Item = (&'a str, Option<&str>)> {
        self.params.iter().map(|param| (param.name, param.value.as_deref()))
    }
}

/// The form in which a header lists the extension: `name; param=value; param`.
///
/// Nothing is quoted: parsed names and values are tokens, and the caller must use tokens too.
impl fmt::Display for Extension<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for (name, value) in self.params() {
            write!(f, "; {name}")?;
            if let Some(value) = value {
                write!(f, "={value}")?;
            }
        }
        Ok(())
    }
}

/// A recursive descent over one line; `0 <= offset <= text.len()`, always between characters.
struct Parser<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Parser<'a> {
    fn list(&mut self, extensions: &mut Vec<Extension<'a>>) -> Result<(), ExtensionsError> {
        loop {
            self.skip_space();
            match self.peek() {
                None => return Ok(()),
                // RFC 2616 §2.1: null elements are allowed.
                Some(b',') => self.offset += 1,
                Some(_) => {
                    extensions.push(self.extension()?);
                    if !matches!(self.peek(), None | Some(b',')) {
                        return Err(ExtensionsError::ExpectedSeparator { offset: self.offset });
                    }
                }
            }
        }
    }

    fn extension(&mut self) -> Result<Extension<'a>, ExtensionsError> {
        let name = self.token().ok_or(ExtensionsError::ExpectedName { offset: self.offset })?;
        let mut params = Vec::new();
        self.skip_space();
        while self.peek() == Some(b';') {
            self.offset += 1;
            self.skip_space();
            params.push(self.param()?);
            self.skip_space();
        }
        Ok(Extension { name, params })
    }

    fn param(&mut self) -> Result<Param<'a>, ExtensionsError> {
        let name = self.token().ok_or(ExtensionsError::ExpectedParam { offset: self.offset })?;
        // RFC 6455 §4.3: by the implied *LWS rule of RFC 2616 §2.1, whitespace may surround the `=`.
        self.skip_space();
        if self.peek() != Some(b'=') {
            return Ok(Param { name, value: None });
        }
        self.offset += 1;
        self.skip_space();
        let value = if self.peek() == Some(b'"') {
            self.quoted()?
        } else {
            Cow::Borrowed(self.token().ok_or(ExtensionsError::ExpectedValue { offset: self.offset })?)
        };
        Ok(Param { name, value: Some(value) })
    }

    /// A quoted-string (RFC 2616 §2.2), unquoted.
    fn quoted(&mut self) -> Result<Cow<'a, str>, ExtensionsError> {
        let opened = self.offset;
        let body = opened + 1;
        let bytes = self.text.as_bytes();
        let mut at = body;
        let mut has_escapes = false;
        loop {
            match bytes.get(at) {
                None => return Err(ExtensionsError::UnclosedQuote { offset: opened }),
                Some(b'"') => break,
                Some(b'\\') => {
                    has_escapes = true;
                    at += 2;
                }
                Some(_) => at += 1,
            }
        }
        self.offset = at + 1;
        let raw = &bytes[body..at];
        let not_token = ExtensionsError::QuotedNotToken { offset: opened };
        if !has_escapes {
            // RFC 6455 §9.1: the value after unescaping MUST conform to the token ABNF.
            return if is_token(raw) { Ok(Cow::Borrowed(&self.text[body..at])) } else { Err(not_token) };
        }
        let mut value = String::with_capacity(raw.len());
        let mut raw = raw.iter();
        while let Some(&byte) = raw.next() {
            let byte = if byte == b'\\' { raw.next().copied().unwrap_or(byte) } else { byte };
            if !is_token_byte(byte) {
                return Err(not_token);
            }
            value.push(char::from(byte));
        }
        Ok(Cow::Owned(value))
    }

    fn token(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.offset..];
        let len = rest.bytes().position(|byte| !is_token_byte(byte)).unwrap_or(rest.len());
        self.offset += len;
        (len > 0).then(|| &rest[..len])
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.offset += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.offset).copied()
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    fn extension<'a>(name: &'a str, params: &[(&'a str, Option<&'a str>)]) -> Extension<'a> {
        let param =
            |&(name, value): &(&'a str, Option<&'a str>)| Param { name, value: value.map(Cow::Borrowed) };
        Extension { name, params: params.iter().map(param).collect() }
    }

    #[test]
    fn reads_the_examples_of_the_rfc() {
        // RFC 6455 §9.1.
        assert_eq!(parse("foo"), Ok(vec![extension("foo", &[])]));
        assert_eq!(parse("bar; baz=2"), Ok(vec![extension("bar", &[("baz", Some("2"))])]),);
        assert_eq!(parse("foo, bar; baz=2"), parse_lines(["foo", "bar; baz=2"]));
        assert_eq!(
            parse("deflate-stream, mux; max-channels=4; flow-control, deflate-stream"),
            Ok(vec![
                extension("deflate-stream", &[]),
                extension("mux", &[("max-channels", Some("4")), ("flow-control", None)]),
                extension("deflate-stream", &[]),
            ]),
        );
    }

    #[test]
    fn keeps_repeated_and_unknown_parameters_in_order() {
        assert_eq!(
            parse("a;x=1;x=2;X;y"),
            Ok(vec![extension("a", &[("x", Some("1")), ("x", Some("2")), ("X", None), ("y", None)])]),
        );
    }

    #[test]
    fn allows_whitespace_between_words_and_separators() {
        // RFC 6455 §4.3, RFC 2616 §2.1: implied *LWS.
        let spaced = "\t a ; \t b\t=  c ;d = \"e\" \t,  f ";
        assert_eq!(parse(spaced), parse("a;b=c;d=e,f"));
    }

    #[test]
    fn skips_null_elements_and_rejects_empty_lists() {
        // RFC 2616 §2.1.
        assert_eq!(parse(",, a ,,b,"), parse("a,b"));
        assert_eq!(parse_lines(["", "a", " , "]), parse("a"));
        for nothing in ["", " ", ",", " ,\t, "] {
            assert_eq!(parse(nothing), Err(ExtensionsError::Empty), "{nothing:?}");
        }
        assert_eq!(parse_lines([]), Ok(vec![]));
        assert_eq!(parse_lines(["", ","]), Err(ExtensionsError::Empty));
    }

    #[test]
    fn unquotes_values_and_borrows_where_it_can() {
        let list = parse(r#"a; b="10"; c="\1\0"; d="\x\-y""#).unwrap();
        assert_eq!(list, [extension("a", &[("b", Some("10")), ("c", Some("10")), ("d", Some("x-y"))])]);
        assert!(matches!(list[0].params[0].value, Some(Cow::Borrowed("10"))));
        assert!(matches!(list[0].params[1].value, Some(Cow::Owned(_))));
    }

    #[test]
    fn quoted_values_must_be_tokens() {
        // RFC 6455 §9.1.
        for value in
            [r#""""#, r#"" ""#, r#""a b""#, r#""a,b""#, r#""a;b""#, r#""\"""#, r#""\\""#, "\"é\"", "\"\\é\""]
        {
            assert_eq!(
                parse(&alloc::format!("a; b={value}")),
                Err(ExtensionsError::QuotedNotToken { offset: 5 }),
                "{value}",
            );
        }
    }

    #[test]
    fn reports_the_position_of_an_error() {
        use ExtensionsError::*;
        for (value, error) in [
            ("=", ExpectedName { offset: 0 }),
            ("a, ;b", ExpectedName { offset: 3 }),
            ("a, \"b\"", ExpectedName { offset: 3 }),
            ("é", ExpectedName { offset: 0 }),
            ("a;", ExpectedParam { offset: 2 }),
            ("a; ", ExpectedParam { offset: 3 }),
            ("a;;b", ExpectedParam { offset: 2 }),
            ("a; ,b", ExpectedParam { offset: 3 }),
            ("a; =b", ExpectedParam { offset: 3 }),
            ("a;\"b\"", ExpectedParam { offset: 2 }),
            ("a;b=", ExpectedValue { offset: 4 }),
            ("a;b= ,c", ExpectedValue { offset: 5 }),
            ("a;b==c", ExpectedValue { offset: 4 }),
            ("a;b='c'(", ExpectedSeparator { offset: 7 }),
            ("a b", ExpectedSeparator { offset: 2 }),
            ("a=b", ExpectedSeparator { offset: 1 }),
            ("a/1", ExpectedSeparator { offset: 1 }),
            ("a;b c", ExpectedSeparator { offset: 4 }),
            ("a;b=c d", ExpectedSeparator { offset: 6 }),
            ("a;b=\"c\"d", ExpectedSeparator { offset: 7 }),
            ("a;b=\"c\"\"d\"", ExpectedSeparator { offset: 7 }),
            ("a;b\0", ExpectedSeparator { offset: 3 }),
            ("a;b=\"", UnclosedQuote { offset: 4 }),
            ("a;b=\"c", UnclosedQuote { offset: 4 }),
            ("a;b=\"c\\", UnclosedQuote { offset: 4 }),
            ("a;b=\"c\\\"", UnclosedQuote { offset: 4 }),
        ] {
            assert_eq!(parse(value), Err(error), "{value:?}");
        }
    }

    #[test]
    fn display_and_parse_are_inverse() {
        let list = parse(r#"a; b="1"; c; d=e, f"#).unwrap();
        let written: Vec<String> = list.iter().map(Extension::to_string).collect();
        assert_eq!(written, ["a; b=1; c; d=e", "f"]);
        assert_eq!(parse(&written.join(", ")), Ok(list));
    }

    #[test]
    fn arbitrary_text_yields_only_tokens() {
        wireloom_testing::rounds(2_000, |rng| {
            let len = rng.len(60);
            let alphabet: Vec<char> = "ab,;=\"\\ \té\0".chars().collect();
            let text: String = (0..len).map(|_| *rng.pick(&alphabet)).collect();
            for extension in parse(&text).into_iter().flatten() {
                assert!(is_token(extension.name.as_bytes()));
                for (name, value) in extension.params() {
                    assert!(
                        is_token(name.as_bytes()) && value.is_none_or(|value| is_token(value.as_bytes()))
                    );
                }
            }
        });
    }
}
