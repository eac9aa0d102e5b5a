//! The priority of a response: urgency and incremental (RFC 9218 §4 and §5).
//!
//! [`Priority`] parses the `priority` field and PRIORITY_UPDATE, which are dictionaries of structured fields (RFC 8941 §3.2).
//!
//! ```text
//! u=2, i              urgency 2, incremental
//! i=?0, x=(a b);c     unknown keys of any type are ignored
//! ```

use crate::field::{FieldList, Token};

/// The priority of a response (RFC 9218 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Priority {
    /// From 0, the most urgent, to 7: `<= URGENCY_MAX`.
    pub urgency: u8,
    /// Whether the client can use the response incrementally, so that it may share the bandwidth with responses of equal urgency.
    pub incremental: bool,
}

impl Priority {
    /// The lowest urgency.
    pub const URGENCY_MAX: u8 = 7;

    /// The values of parameters that a signal omits (RFC 9218 §4.1, §4.2).
    pub const DEFAULT: Self = Self { urgency: 3, incremental: false };

    /// The priority of a stream without a signal. Incremental, because otherwise a large response would delay all later ones.
    pub const UNSIGNALLED: Self = Self { urgency: 3, incremental: true };

    /// An index from 0 to 15: twice the urgency, plus one if incremental.
    pub(crate) const fn index(self) -> usize {
        let urgency = if self.urgency > Self::URGENCY_MAX { Self::URGENCY_MAX } else { self.urgency };
        (urgency as usize) << 1 | self.incremental as usize
    }

    /// Parses the value of a `priority` field (several are joined by commas) or of PRIORITY_UPDATE. Omitted parameters are as in
    /// [`Priority::DEFAULT`]. Unknown keys, values out of range and values of another type are ignored.
    ///
    /// Returns `None` if the value is not a dictionary. Such a field is ignored completely (RFC 8941 §4.2).
    ///
    /// ```
    /// use wireloom_http2::priority::Priority;
    ///
    /// assert_eq!(Priority::parse(b"u=5, i"), Some(Priority { urgency: 5, incremental: true }));
    /// assert_eq!(Priority::parse(b"u=9, x=y"), Some(Priority::DEFAULT));
    /// assert_eq!(Priority::parse(b"u=5,"), None);
    /// ```
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut priority = Self::DEFAULT;
        let mut parser = Parser { input: value };
        parser.take_while(|byte| byte == b' ');
        while !parser.input.is_empty() {
            let key = parser.key()?;
            let item = parser.member()?;
            // RFC 8941 §3.2: the last of repeated keys counts. RFC 9218 §4: invalid values are ignored.
            match (key, item) {
                (b"u", Item::Integer(urgency @ 0..=7)) => priority.urgency = urgency as u8,
                (b"u", _) => priority.urgency = Self::DEFAULT.urgency,
                (b"i", Item::Boolean(incremental)) => priority.incremental = incremental,
                (b"i", _) => priority.incremental = Self::DEFAULT.incremental,
                _ => {}
            }
            parser.take_while(is_ows);
            if parser.input.is_empty() {
                break;
            }
            if parser.next()? != b',' {
                return None;
            }
            parser.take_while(is_ows);
            // RFC 8941 §4.2.2: a member must follow each comma.
            if parser.input.is_empty() {
                return None;
            }
        }
        Some(priority)
    }

    /// Parses the `priority` fields of a message. Returns `None` if there is none, or if they are not a dictionary.
    pub(crate) fn of_fields(fields: &FieldList) -> Option<Self> {
        let first = fields.find(Token::Priority)?;
        let mut values = fields.iter().filter(|field| field.token() == Token::Priority).skip(1).peekable();
        if values.peek().is_none() {
            return Self::parse(first.value());
        }
        // RFC 8941 §4.2: several fields are joined by commas.
        let mut joined = first.value().to_vec();
        for field in values {
            joined.extend_from_slice(b", ");
            joined.extend_from_slice(field.value());
        }
        Self::parse(&joined)
    }

    /// The value of the field, for a request or for PRIORITY_UPDATE.
    pub const fn as_str(self) -> &'static str {
        const VALUES: [[&str; 2]; 8] = [
            ["u=0", "u=0, i"],
            ["u=1", "u=1, i"],
            ["u=2", "u=2, i"],
            ["u=3", "i"],
            ["u=4", "u=4, i"],
            ["u=5", "u=5, i"],
            ["u=6", "u=6, i"],
            ["u=7", "u=7, i"],
        ];
        VALUES[(self.urgency & Self::URGENCY_MAX) as usize][self.incremental as usize]
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const fn is_ows(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// A value of the types that priorities use.
enum Item {
    Integer(i64),
    Boolean(bool),
    /// A type that neither key has.
    Other,
}

/// A parser of structured fields (RFC 8941 §4.2), and of dates and display strings (RFC 9651). It reads each byte a bounded number
/// of times.
struct Parser<'a> {
    /// The input that has not been parsed.
    input: &'a [u8],
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<u8> {
        let (&byte, input) = self.input.split_first()?;
        self.input = input;
        Some(byte)
    }

    fn take_if(&mut self, wanted: u8) -> bool {
        let found = self.input.first() == Some(&wanted);
        if found {
            self.input = &self.input[1..];
        }
        found
    }

    /// Consumes the bytes that match.
    fn take_while(&mut self, matches: impl Fn(u8) -> bool) -> &'a [u8] {
        let len = self.input.iter().position(|&byte| !matches(byte)).unwrap_or(self.input.len());
        let (taken, input) = self.input.split_at(len);
        self.input = input;
        taken
    }

    /// RFC 8941 §3.1.2
    fn key(&mut self) -> Option<&'a [u8]> {
        if !matches!(self.input.first()?, b'a'..=b'z' | b'*') {
            return None;
        }
        Some(self.take_while(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')))
    }

    /// The value after a key; without one it is true (RFC 8941 §4.2.2).
    fn member(&mut self) -> Option<Item> {
        let item = if !self.take_if(b'=') {
            Item::Boolean(true)
        } else if self.take_if(b'(') {
            self.inner_list()?;
            Item::Other
        } else {
            self.bare_item()?
        };
        self.parameters()?;
        Some(item)
    }

    /// RFC 8941 §4.2.1.2, after the opening parenthesis.
    fn inner_list(&mut self) -> Option<()> {
        loop {
            self.take_while(|byte| byte == b' ');
            if self.take_if(b')') {
                return Some(());
            }
            self.bare_item()?;
            self.parameters()?;
            if !matches!(self.input.first()?, b' ' | b')') {
                return None;
            }
        }
    }

    /// RFC 8941 §4.2.3.2
    fn parameters(&mut self) -> Option<()> {
        while self.take_if(b';') {
            self.take_while(|byte| byte == b' ');
            self.key()?;
            if self.take_if(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    /// RFC 8941 §4.2.3.1
    fn bare_item(&mut self) -> Option<Item> {
        match *self.input.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'?' => {
                self.next();
                match self.next()? {
                    b'0' => Some(Item::Boolean(false)),
                    b'1' => Some(Item::Boolean(true)),
                    _ => None,
                }
            }
            b'"' => {
                self.next();
                self.string()
            }
            b':' => {
                self.next();
                self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
                (self.next()? == b':').then_some(Item::Other)
            }
            b'@' => {
                self.next();
                // RFC 9651 §3.3.7: a date is an integer.
                matches!(self.number()?, Item::Integer(_)).then_some(Item::Other)
            }
            b'%' => {
                self.next();
                // RFC 9651 §3.3.8: a display string.
                (self.next()? == b'"').then(|| self.string())?
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'*' => {
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Some(Item::Other)
            }
            _ => None,
        }
    }

    /// RFC 8941 §4.2.4: at most fifteen digits, or twelve, a dot and three.
    fn number(&mut self) -> Option<Item> {
        let negative = self.take_if(b'-');
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.take_if(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            return (digits.len() <= 12 && (1..=3).contains(&fraction.len())).then_some(Item::Other);
        }
        let number = digits.iter().fold(0_i64, |number, digit| number * 10 + i64::from(digit - b'0'));
        Some(Item::Integer(if negative { -number } else { number }))
    }

    /// RFC 8941 §4.2.5, after the opening quote.
    fn string(&mut self) -> Option<Item> {
        loop {
            match self.next()? {
                b'"' => return Some(Item::Other),
                b'\\' if !matches!(self.next()?, b'"' | b'\\') => return None,
                b'\\' | 0x20..=0x7e => {}
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Field;
    use wireloom_testing::rounds;

    #[test]
    fn parses_the_values_of_the_rfc() {
        // RFC 9218 §4, §5: value, urgency, incremental.
        let cases: &[(&str, u8, bool)] = &[
            ("", 3, false),
            ("   ", 3, false),
            ("u=0", 0, false),
            ("u=7", 7, false),
            ("i", 3, true),
            ("u=5, i", 5, true),
            ("u=5,i", 5, true),
            ("i ,\tu=1", 1, true),
            ("  u=2  ", 2, false),
            ("i=?0", 3, false),
            ("i=?1", 3, true),
            ("u=1;x=2;y, i;z", 1, true),
            // RFC 9218 §4: MUST ignore unknown keys, values out of range, and values of another type.
            ("u=8", 3, false),
            ("u=-1", 3, false),
            ("u=3.0, i=1", 3, false),
            ("u=\"1\", i=yes", 3, false),
            ("u, i=:aGk=:", 3, false),
            ("u=(1 2), i=(?1)", 3, false),
            ("x=1, y=(a \"b\\\"c\" 1.5;q=?0);z=:aGk=:, u=6, *-_.9=tok:/en", 6, false),
            ("d=@1659578233, s=%\"f%c3%bc\", u=4", 4, false),
            ("u=10", 3, false),
            ("u=07", 7, false),
            // RFC 8941 §3.3.1, §3.3.2: fifteen digits, or twelve before the dot and three behind it.
            ("x=999999999999999, y=999999999999.999, u=5", 5, false),
            // RFC 8941 §3.2: the last of repeated keys counts.
            ("u=1, u=2", 2, false),
            ("u=1, u=99, i, i=3", 3, false),
        ];
        for &(value, urgency, incremental) in cases {
            assert_eq!(
                Priority::parse(value.as_bytes()),
                Some(Priority { urgency, incremental }),
                "{value:?}"
            );
        }
        assert_eq!(Priority::parse(b""), Some(Priority::default()));
    }

    #[test]
    fn a_value_that_is_not_a_dictionary_is_ignored() {
        // RFC 8941 §4.2: parsing fails as a whole.
        let cases = [
            "u=",
            "=1",
            "u=1,",
            ",u=1",
            "u=1,,i",
            "u=1 i",
            "U=1",
            "1",
            "u =1",
            "u= 1",
            "u=1;",
            "u=1;=2",
            "i=?2",
            "i=?",
            "u=--1",
            "u=1.",
            "u=1.0000",
            "u=1000000000000000",
            "u=1000000000000.0",
            "u=\"1",
            "x=\"\\a\"",
            "x=\"\u{7}\"",
            "x=(",
            "x=(1",
            "x=(1\"a\")",
            "x=:a",
            "x=@1.5",
            "x=%a",
            "u=1\u{0}",
            "\tu=1",
            "x=\u{e4}",
            "u=1\u{e4}",
            "-=1",
        ];
        for value in cases {
            assert_eq!(Priority::parse(value.as_bytes()), None, "{value:?}");
        }
    }

    #[test]
    fn several_fields_are_one_dictionary() {
        // RFC 8941 §4.2, §3.2: joined by commas; the last of repeated keys counts, and parsing fails as a whole.
        let parse = |values: &[&str]| {
            let fields = values.iter().map(|value| Field::known(Token::Priority, value.as_bytes()));
            Priority::of_fields(&fields.collect())
        };
        let priority = |urgency, incremental| Some(Priority { urgency, incremental });
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&["u=1"]), priority(1, false));
        assert_eq!(parse(&["u=1", "i"]), priority(1, true));
        assert_eq!(parse(&["u=1", "u=2", "i"]), priority(2, true));
        assert_eq!(parse(&["u=1", "="]), None);
    }

    #[test]
    fn parsing_inverts_formatting() {
        for urgency in 0..=Priority::URGENCY_MAX {
            for incremental in [false, true] {
                let priority = Priority { urgency, incremental };
                assert_eq!(Priority::parse(priority.as_str().as_bytes()), Some(priority));
            }
        }
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic() {
        rounds(3_000, |rng| {
            let len = rng.len(60);
            let value: alloc::vec::Vec<u8> =
                (0..len).map(|_| *rng.pick(b"ui=,; ?01()\"\\:@%*a-.\t\x00\xff")).collect();
            if let Some(priority) = Priority::parse(&value) {
                assert!(priority.urgency <= Priority::URGENCY_MAX);
            }
        });
    }

    #[test]
    fn an_urgency_above_the_maximum_is_the_maximum() {
        for (urgency, index) in [(0, 1), (6, 13), (7, 15), (8, 15), (u8::MAX, 15)] {
            assert_eq!(Priority { urgency, incremental: true }.index(), index);
        }
    }
}
