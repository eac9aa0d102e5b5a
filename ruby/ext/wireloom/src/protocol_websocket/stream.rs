//! The object that frames are read from: any with `read(length)`. A `StringIO` is read in place.

use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::{Error, Fixnum, RString, Ruby, TryConvert, Value};
use rb_sys::{Qfalse, VALUE, rb_funcallv};

use super::names::Names;
use crate::strings;

/// What is left of a `StringIO`: its string, and the position in it.
#[derive(Clone, Copy)]
pub(super) struct Window {
    string: VALUE,
    pos: usize,
}

impl Window {
    /// Runs `look` with the bytes; it may make objects, but runs no Ruby code.
    #[inline]
    pub(super) fn look<T>(self, look: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: the position is within the string, which is on the stack until here, and no Ruby code runs that could change it.
        let bytes = unsafe { &strings::bytes(self.string)[self.pos..] };
        let seen = look(bytes);
        std::hint::black_box(self.string);
        seen
    }
}

#[derive(Clone, Copy)]
pub(super) struct Stream<'n> {
    value: Value,
    names: &'n Names,
}

impl<'n> Stream<'n> {
    pub(super) fn new(names: &'n Names, value: Value) -> Self {
        Self { value, names }
    }

    /// Whether it is a `StringIO`, and nothing made of one.
    #[inline]
    pub(super) fn is_memory(&self) -> bool {
        self.names.is_string_io(self.value)
    }

    /// What is left of a `StringIO` that may be read and has not ended.
    ///
    /// # Safety
    /// It [is one](Self::is_memory). Ruby may raise: this is called where an exception skips no destructor and no borrow.
    #[inline]
    pub(super) unsafe fn window(&self) -> Option<Window> {
        // SAFETY: a live object and interned names; the caller vouches for what an exception skips. The methods may be
        // overridden: their results are checked.
        unsafe {
            if self.call(self.names.closed_read) != Qfalse as VALUE {
                return None;
            }
            let pos = Fixnum::from_value(Value::from_raw(self.call(self.names.pos)))?.to_i64();
            // The last call: none that comes after it can change the String.
            let string = RString::from_value(Value::from_raw(self.call(self.names.string)))?.as_raw();
            (0..rb_sys::RSTRING_LEN(string) as i64)
                .contains(&pos)
                .then_some(Window { string, pos: pos as usize })
        }
    }

    /// Moves on by `used` bytes of a `window`.
    ///
    /// # Safety
    /// As for `window`.
    #[inline]
    pub(super) unsafe fn skip(&self, ruby: &Ruby, window: Window, used: usize) {
        let to = ruby.integer_from_u64((window.pos + used) as u64).as_raw();
        // SAFETY: as above; the position is within the string.
        unsafe {
            rb_funcallv(self.value.as_raw(), self.names.set_pos, 1, &to);
        }
    }

    /// `read(len)`: a String, which is shorter than that at the end of the stream, or `None` there.
    #[inline]
    pub(super) fn read(&self, ruby: &Ruby, len: u64) -> Result<Option<RString>, Error> {
        let len = ruby.integer_from_u64(len).as_raw();
        // SAFETY: as above.
        let read = protect(|| unsafe { rb_funcallv(self.value.as_raw(), self.names.read, 1, &len) })?;
        // SAFETY: it came from Ruby just now.
        Option::<RString>::try_convert(unsafe { Value::from_raw(read) })
    }

    /// `flush`; a `StringIO` has nothing to do there.
    #[inline]
    pub(super) fn flush(&self) -> Result<(), Error> {
        if self.is_memory() {
            return Ok(());
        }
        // SAFETY: as above.
        protect(|| unsafe { self.call(self.names.flush) }).map(drop)
    }

    /// Calls a method without arguments.
    ///
    /// # Safety
    /// Within `protect`.
    #[inline]
    unsafe fn call(&self, name: rb_sys::ID) -> VALUE {
        // SAFETY: a live object and an interned name; the caller catches exceptions.
        unsafe { rb_funcallv(self.value.as_raw(), name, 0, std::ptr::null()) }
    }
}
