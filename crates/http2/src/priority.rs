//! The priority of a response: urgency and incremental (RFC 9218 §4 and §5).
//!
//! Owns [`Priority`] and the reading of the `priority` field and of PRIORITY_UPDATE, which hold a dictionary of
//! structured fields (RFC 8941 §3.2). Refuses to own what the scheduler makes of it.
//!
//! ```text
//! u=2, i              urgency 2, incremental
//! i=?0, x=(a b);c     unknown keys, of whatever type, are passed over
//! ```

/// How a client wants a response to be served (RFC 9218 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Priority {
    /// From 0, the most urgent, to 7: `<= URGENCY_MAX`.
    pub urgency: u8,
    /// Whether pieces of the response are of use before the whole is there, so that it may share with its equals.
    pub incremental: bool,
}

impl Priority {
    /// The least urgent.
    pub const URGENCY_MAX: u8 = 7;

    /// The priority of a response without a signal (RFC 9218 §4.1, §4.2).
    pub const DEFAULT: Self = Self { urgency: 3, incremental: false };

    /// How responses are served to a client that sends no priority signal at all: in turns. Such a client is not likely
    /// to know RFC 9218, and a large response must not delay all that were requested after it.
    pub(crate) const UNSIGNALLED: Self = Self { urgency: 3, incremental: true };

    /// 0 to 15: twice the urgency, plus one for incremental.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        let urgency = if self.urgency > Self::URGENCY_MAX { Self::URGENCY_MAX } else { self.urgency };
        (urgency as usize) << 1 | self.incremental as usize
    }

    /// Reads the value of a `priority` field (several joined by commas) or of PRIORITY_UPDATE. Omitted parameters are as
    /// in [`Priority::DEFAULT`]; unknown keys, values out of range and values of another type are passed over.
    ///
    /// `None` is for what is no dictionary. Such a field is ignored as a whole (RFC 8941 §4.2).
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
        let mut rest = Reader { rest: value };
        rest.skip(|byte| byte == b' ');
        while !rest.rest.is_empty() {
            let key = rest.key()?;
            let item = rest.member()?;
            // RFC 8941 §3.2: of repeated keys the last counts; RFC 9218 §4: what makes no sense is ignored.
            match (key, item) {
                (b"u", Item::Integer(urgency @ 0..=7)) => priority.urgency = urgency as u8,
                (b"u", _) => priority.urgency = Self::DEFAULT.urgency,
                (b"i", Item::Boolean(incremental)) => priority.incremental = incremental,
                (b"i", _) => priority.incremental = Self::DEFAULT.incremental,
                _ => {}
            }
            rest.skip(is_ows);
            if rest.rest.is_empty() {
                break;
            }
            if rest.next()? != b',' {
                return None;
            }
            rest.skip(is_ows);
            // RFC 8941 §4.2.2: nothing may follow the last comma but another member.
            if rest.rest.is_empty() {
                return None;
            }
        }
        Some(priority)
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
    /// Of a type that neither key has.
    Other,
}

/// Structured fields (RFC 8941 §4.2, and dates and display strings of RFC 9651), read from the left. Each step takes
/// what it reads, so that all of them together look at each byte a bounded number of times.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn take_if(&mut self, wanted: u8) -> bool {
        let found = self.rest.first() == Some(&wanted);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    /// Takes the bytes that are of a kind.
    fn skip(&mut self, of_kind: impl Fn(u8) -> bool) -> &'a [u8] {
        let len = self.rest.iter().position(|&byte| !of_kind(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// RFC 8941 §3.1.2
    fn key(&mut self) -> Option<&'a [u8]> {
        if !matches!(self.rest.first()?, b'a'..=b'z' | b'*') {
            return None;
        }
        Some(self.skip(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')))
    }

    /// RFC 8941 §4.2.2: what follows a key; nothing is as good as true.
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

    /// RFC 8941 §4.2.1.2, behind the parenthesis that opens.
    fn inner_list(&mut self) -> Option<()> {
        loop {
            self.skip(|byte| byte == b' ');
            if self.take_if(b')') {
                return Some(());
            }
            self.bare_item()?;
            self.parameters()?;
            if !matches!(self.rest.first()?, b' ' | b')') {
                return None;
            }
        }
    }

    /// RFC 8941 §4.2.3.2
    fn parameters(&mut self) -> Option<()> {
        while self.take_if(b';') {
            self.skip(|byte| byte == b' ');
            self.key()?;
            if self.take_if(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    /// RFC 8941 §4.2.3.1
    fn bare_item(&mut self) -> Option<Item> {
        match *self.rest.first()? {
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
                self.skip(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
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
                self.skip(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Some(Item::Other)
            }
            _ => None,
        }
    }

    /// RFC 8941 §4.2.4: fifteen digits, or twelve, a dot and three.
    fn number(&mut self) -> Option<Item> {
        let negative = self.take_if(b'-');
        let digits = self.skip(|byte| byte.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.take_if(b'.') {
            let fraction = self.skip(|byte| byte.is_ascii_digit());
            return (digits.len() <= 12 && (1..=3).contains(&fraction.len())).then_some(Item::Other);
        }
        let number = digits.iter().fold(0_i64, |number, digit| number * 10 + i64::from(digit - b'0'));
        Some(Item::Integer(if negative { -number } else { number }))
    }

    /// RFC 8941 §4.2.5, behind the quote that opens.
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
    use wireloom_testing::rounds;

    #[test]
    fn reads_what_the_rfc_shows() {
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
    fn what_is_no_dictionary_is_ignored_as_a_whole() {
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
    fn reads_what_it_writes() {
        for urgency in 0..=Priority::URGENCY_MAX {
            for incremental in [false, true] {
                let priority = Priority { urgency, incremental };
                assert_eq!(Priority::parse(priority.as_str().as_bytes()), Some(priority));
            }
        }
    }

    #[test]
    fn anything_is_survived() {
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
    fn an_urgency_beyond_the_last_is_the_last() {
        for (urgency, index) in [(0, 1), (6, 13), (7, 15), (8, 15), (u8::MAX, 15)] {
            assert_eq!(Priority { urgency, incremental: true }.index(), index);
        }
    }
}
