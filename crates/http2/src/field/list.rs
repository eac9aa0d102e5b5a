//! [`FieldList`]: a list of fields in one arena, which is reused for the next message.
//!
//! ```text
//! bytes  |content-type? no: known|text/html|x-trace|1f2e|.......scratch.......|
//!                                 ^ start   ^ start      ^ used               ^ bytes.len(), all initialised
//! spans  {token: ContentType, start, value_len} {token: Unknown, start, name_len, value_len}
//! ```
//!
//! Names with a [`Token`] and static values are not copied. The decoder writes strings after
//! `used` and then adds them to the list, or overwrites them.

use alloc::vec::Vec;

use super::{Field, Malformed, Token};

/// The memory that a list keeps for the next message while it is not in use, in bytes.
pub(crate) const ARENA_KEPT: usize = 4096;

/// The limits of a field section. Fields above them are decoded but not stored, because the dynamic tables of both ends have to
/// stay equal. Four times the size is a connection error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldLimits {
    /// The maximum of [`FieldList::list_size`], in bytes: SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113 §6.5.2).
    pub list_size_max: u32,
    /// The maximum number of fields. The size alone allows thousands of small fields, each with its own cost.
    pub fields_max: usize,
}

impl FieldLimits {
    /// A block is not decoded any further when its list is this many times larger than the limit.
    const GIVE_UP_FACTOR: usize = 4;

    /// Limits on the size and on the number of fields.
    pub const fn new(list_size_max: u32, fields_max: usize) -> Self {
        Self { list_size_max, fields_max }
    }
}

impl Default for FieldLimits {
    /// 64 KiB, which nghttp2 accepts and which is four times what common servers accept; 512 fields, several times as many as a
    /// browser with many cookies sends.
    fn default() -> Self {
        Self::new(64 * 1024, 512)
    }
}

#[derive(Clone, Copy, Debug)]
struct Span {
    /// The offset of the name (if the token is unknown), which the value follows.
    start: u32,
    name_len: u32,
    value_len: u32,
    token: Token,
    is_sensitive: bool,
    /// The value, if it is static: it is not in the arena.
    value: Option<&'static [u8]>,
}

impl Span {
    fn place(self) -> PlacedField {
        let (start, len) = (self.start + self.name_len, self.value_len);
        PlacedField {
            token: self.token,
            name: match self.token {
                Token::Unknown => Place::Arena { start: self.start, len: self.name_len },
                token => Place::Static(token.name().as_bytes()),
            },
            value: self.value.map_or(Place::Arena { start, len }, Place::Static),
            sensitive: self.is_sensitive,
        }
    }
}

/// Where a string of a field is, once its list was taken apart by [`FieldList::into_arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the arena.
    Arena {
        /// The offset of its first byte.
        start: u32,
        /// Its length, in bytes.
        len: u32,
    },
    /// Not in the arena, because it is a name with a [`Token`] or a static value.
    Static(&'static [u8]),
}

/// A field of a list that was taken apart by [`FieldList::into_arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedField {
    /// The token of the name.
    pub token: Token,
    /// The name.
    pub name: Place,
    /// The value.
    pub value: Place,
    /// Whether the field must never be indexed.
    pub sensitive: bool,
}

/// Fields in their order. Clearing a list keeps its memory for the next one.
///
/// ```
/// use wireloom_http2::field::{Field, FieldList, Token};
///
/// let mut list = FieldList::new();
/// list.push(Field::known(Token::Status, b"200"));
/// list.push(Field::new(b"x-trace", b"1f2e"));
/// assert_eq!(list.find(Token::Status).unwrap().value(), b"200");
/// assert_eq!(list.list_size(), 42 + 43);
/// ```
#[derive(Clone, Default)]
pub struct FieldList {
    bytes: Vec<u8>,
    /// `0 <= used <= bytes.len()`
    used: usize,
    spans: Vec<Span>,
    list_size: usize,
    malformed: Option<Malformed>,
    too_large: bool,
}

impl FieldList {
    /// An empty list, which owns no memory.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            spans: Vec::new(),
            list_size: 0,
            malformed: None,
            too_large: false,
        }
    }

    /// The number of fields that are stored.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether no field is stored.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The field at an index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Field<'_>> {
        self.spans.get(index).map(|span| self.field(span))
    }

    /// The fields in order.
    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        Iter { list: self, spans: self.spans.iter() }
    }

    /// The first field with this token.
    #[inline]
    pub fn find(&self, token: Token) -> Option<Field<'_>> {
        self.spans.iter().find(|span| span.token == token).map(|span| self.field(span))
    }

    /// The first field with this name, which is in lower case.
    pub fn find_name(&self, name: &[u8]) -> Option<Field<'_>> {
        match Token::of(name) {
            Token::Unknown => self.iter().find(|field| field.name() == name),
            token => self.find(token),
        }
    }

    /// The size of the list, in bytes as RFC 9113 §6.5.2 counts them: name, value and 32 for each field. Fields that were not
    /// stored count too.
    #[inline]
    pub fn list_size(&self) -> usize {
        self.list_size
    }

    /// Whether a limit of [`FieldLimits`] was exceeded, so that fields are missing.
    #[inline]
    pub fn too_large(&self) -> bool {
        self.too_large
    }

    /// The first rule that a received field violates. The field is in the list nevertheless.
    #[inline]
    pub fn malformed(&self) -> Option<Malformed> {
        self.malformed
    }

    /// Appends a copy of a field. Its characters are not checked: see [`Field::check`].
    ///
    /// The maximum size of a list is 4 GiB. Further fields are dropped, and [`FieldList::too_large`] is true then.
    pub fn push(&mut self, field: Field<'_>) {
        let name = if field.token() == Token::Unknown { field.name() } else { &[] };
        let value = field.value();
        let needed = name.len() + value.len();
        // Offsets are 32 bits wide, and used <= list_size.
        if !self.admit(field.list_size(), &FieldLimits::new(u32::MAX, usize::MAX)) {
            return;
        }
        let room = self.scratch(needed);
        room[..name.len()].copy_from_slice(name);
        room[name.len()..needed].copy_from_slice(value);
        self.push_scratch(field.token(), name.len(), value.len(), field.is_sensitive());
    }

    /// Removes all fields, and resets [`FieldList::malformed`] and [`FieldList::too_large`]. Memory is kept.
    pub fn clear(&mut self) {
        self.used = 0;
        self.spans.clear();
        self.list_size = 0;
        self.malformed = None;
        self.too_large = false;
    }

    /// Takes the list apart, so that its strings can be kept without a copy: the arena, and the fields with the places of their strings in
    /// it.
    ///
    /// ```
    /// use wireloom_http2::field::{Field, FieldList, Place, Token};
    ///
    /// let list: FieldList = [Field::known(Token::Path, b"/a")].into_iter().collect();
    /// let (arena, mut fields) = list.into_arena();
    /// let field = fields.next().unwrap();
    /// assert_eq!((arena, field.value), (b"/a".to_vec(), Place::Arena { start: 0, len: 2 }));
    /// assert_eq!(field.name, Place::Static(b":path"));
    /// ```
    pub fn into_arena(mut self) -> (Vec<u8>, impl ExactSizeIterator<Item = PlacedField>) {
        self.bytes.truncate(self.used);
        (self.bytes, self.spans.into_iter().map(Span::place))
    }

    /// Frees memory of the arena above `bytes`: for a list that was used for an unusually large message.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.bytes.truncate(bytes.max(self.used));
        self.bytes.shrink_to_fit();
        self.spans.shrink_to(bytes / size_of::<Span>());
    }

    /// The memory that the list owns, in bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }

    #[inline]
    fn field(&self, span: &Span) -> Field<'_> {
        let start = span.start as usize;
        let sensitive = span.is_sensitive;
        if let Some(value) = span.value {
            return Field::from_parts(span.token, span.token.name().as_bytes(), value, sensitive);
        }
        let value_start = start + span.name_len as usize;
        let value = &self.bytes[value_start..value_start + span.value_len as usize];
        let name = match span.token {
            Token::Unknown => &self.bytes[start..value_start],
            token => token.name().as_bytes(),
        };
        Field::from_parts(span.token, name, value, sensitive)
    }

    /// At least `len` bytes of scratch memory after the stored fields, for a name and a value.
    pub(crate) fn scratch(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() - self.used < len {
            self.grow(len);
        }
        &mut self.bytes[self.used..]
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        let wanted = (self.used + len).max(self.bytes.len() * 2).max(256);
        self.bytes.resize(wanted, 0);
    }

    /// Appends a field whose name (empty if there is a token) and value are at the beginning of the scratch memory.
    pub(crate) fn push_scratch(&mut self, token: Token, name_len: usize, value_len: usize, sensitive: bool) {
        self.spans.push(Span {
            start: self.used as u32,
            name_len: name_len as u32,
            value_len: value_len as u32,
            token,
            is_sensitive: sensitive,
            value: None,
        });
        self.used += name_len + value_len;
    }

    /// Appends a field with a static value, without a copy.
    pub(crate) fn push_static(&mut self, token: Token, value: &'static [u8]) {
        let value = Some(value);
        self.spans.push(Span { start: 0, name_len: 0, value_len: 0, token, is_sensitive: false, value });
    }

    /// Counts a field of this size. Returns whether it may be stored.
    pub(crate) fn admit(&mut self, field_size: usize, limits: &FieldLimits) -> bool {
        self.list_size = self.list_size.saturating_add(field_size);
        if self.list_size > limits.list_size_max as usize || self.spans.len() >= limits.fields_max {
            self.too_large = true;
        }
        !self.too_large
    }

    /// Whether the list exceeds [`FieldLimits::GIVE_UP_FACTOR`] times its limit: the rest of the block is not decoded.
    pub(crate) fn is_bomb(&self, limits: &FieldLimits) -> bool {
        self.list_size / FieldLimits::GIVE_UP_FACTOR > limits.list_size_max as usize
    }

    #[cold]
    pub(crate) fn set_malformed(&mut self, malformed: Malformed) {
        self.malformed.get_or_insert(malformed);
    }
}

impl core::fmt::Debug for FieldList {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl<'a> IntoIterator for &'a FieldList {
    type Item = Field<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> Extend<Field<'a>> for FieldList {
    fn extend<I: IntoIterator<Item = Field<'a>>>(&mut self, fields: I) {
        fields.into_iter().for_each(|field| self.push(field));
    }
}

impl<'a> FromIterator<Field<'a>> for FieldList {
    fn from_iter<I: IntoIterator<Item = Field<'a>>>(fields: I) -> Self {
        let mut list = Self::new();
        list.extend(fields);
        list
    }
}

/// The fields of a [`FieldList`], in order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    list: &'a FieldList,
    spans: core::slice::Iter<'a, Span>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Field<'a>;

    #[inline]
    fn next(&mut self) -> Option<Field<'a>> {
        self.spans.next().map(|span| self.list.field(span))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.spans.size_hint()
    }
}

impl DoubleEndedIterator for Iter<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.spans.next_back().map(|span| self.list.field(span))
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn returns_the_fields_that_were_pushed() {
        let fields = [
            Field::new(b":path", b"/a"),
            Field::new(b"x-one", b""),
            Field::new(b"cookie", b"secret").with_sensitive(true),
            Field::new(b"x-two", &[b'v'; 5000]),
        ];
        let mut list: FieldList = fields.into_iter().collect();
        for _ in 0..2 {
            assert_eq!((list.len(), list.is_empty(), list.iter().size_hint()), (4, false, (4, Some(4))));
            assert_eq!(list.iter().collect::<Vec<_>>(), fields);
            assert_eq!(list.iter().next_back(), list.get(3));
            assert_eq!(list.get(4), None);
            assert_eq!(list.list_size(), fields.iter().map(Field::list_size).sum());
            assert_eq!(list.find(Token::Cookie), Some(fields[2]));
            assert_eq!(list.find_name(b"x-one"), Some(fields[1]));
            assert_eq!(list.find_name(b"x-three"), None);
            assert_eq!(list.find_name(b"host"), None);
            list.clear();
            assert!(list.is_empty() && list.list_size() == 0);
            list.extend(fields);
        }
    }

    #[test]
    fn a_list_that_is_taken_apart_has_its_strings_in_the_arena_or_in_static_memory() {
        let fields = [
            Field::known(Token::Path, b"/a"),
            Field::new(b"x-one", b"1").with_sensitive(true),
            Field::new(b"x-empty", b""),
        ];
        let mut list: FieldList = fields.into_iter().collect();
        list.push_static(Token::Method, b"GET");
        let expected: Vec<_> =
            list.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect();
        let capacity = list.bytes.capacity();
        let (arena, placed) = list.into_arena();
        assert_eq!((arena.as_slice(), arena.capacity()), (&b"/ax-one1x-empty"[..], capacity));
        let place = |place| match place {
            Place::Arena { start, len } => arena[start as usize..][..len as usize].to_vec(),
            Place::Static(string) => string.to_vec(),
        };
        let placed: Vec<_> = placed.collect();
        let strings: Vec<_> = placed.iter().map(|field| (place(field.name), place(field.value))).collect();
        assert_eq!(strings, expected);
        let marks = placed.iter().map(|field| (field.token, field.sensitive));
        let tokens = [Token::Path, Token::Unknown, Token::Unknown, Token::Method];
        assert!(marks.eq(tokens.into_iter().zip([false, true, false, false])));
        assert_eq!((placed[0].name, placed[3].value), (Place::Static(b":path"), Place::Static(b"GET")));
    }

    #[test]
    fn clearing_keeps_memory_and_shrinking_frees_it() {
        let mut list = FieldList::new();
        list.extend([Field::new(b"x", &[b'v'; 100_000])]);
        list.extend([Field::new(b"x", b"y"); 100]);
        list.clear();
        assert!(list.bytes.len() >= 100_000);
        list.shrink_to(256);
        assert_eq!((list.bytes.capacity(), list.spans.capacity()), (256, 256 / size_of::<Span>()));
        assert_eq!(list.capacity(), 256 + 256 / size_of::<Span>() * size_of::<Span>());
        list.push(Field::new(b"x", b"y"));
        assert_eq!(list.get(0), Some(Field::new(b"x", b"y")));
    }

    #[test]
    fn scratch_doubles_when_it_is_too_short() {
        let mut list = FieldList::new();
        assert_eq!([1, 256, 257, 512, 513].map(|len| list.scratch(len).len()), [256, 256, 512, 512, 1024]);
    }

    #[test]
    fn stops_storing_at_its_bounds() {
        let limits = FieldLimits::new(100, 3);
        let mut list = FieldList::new();
        assert!(list.admit(99, &limits) && list.admit(1, &limits) && !list.too_large());
        assert!(!list.admit(1, &limits) && list.too_large());
        assert_eq!(list.list_size(), 101);
        list.clear();
        for _ in 0..3 {
            assert!(list.admit(1, &limits));
            list.push_static(Token::Authority, b"");
        }
        assert!(!list.admit(1, &limits) && list.too_large());
    }
}
