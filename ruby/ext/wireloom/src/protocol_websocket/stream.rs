//! The object that frames are read from: any with `read(length)`. A `StringIO` is read in place. An `IO`, such as a socket, is
//! made to read ahead: `IO#read` makes a system call for each field of a frame, whereas `IO#getbyte` fills the buffer of the
//! `IO`, from which everything after it is read. What was read ahead stays in that buffer, for any other reader of the `IO`.

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, Fixnum, RString, Ruby, TryConvert, Value};
use rb_sys::{Qfalse, Qnil, RBasic, VALUE, rb_funcallv, rb_ivar_get, ruby_value_type};

use super::names::Names;
use crate::guard::protect;
use crate::strings;

/// The rest of a `StringIO`: its string, and the position in it.
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
    framer: Value,
    names: &'n Names,
}

impl<'n> Stream<'n> {
    /// The stream of a framer.
    #[inline]
    pub(super) fn of(names: &'n Names, framer: Value) -> Self {
        // SAFETY: an object and an interned name.
        let value = unsafe { Value::from_raw(rb_ivar_get(framer.as_raw(), names.stream)) };
        Self { value, framer, names }
    }

    /// Whether it is a `StringIO`, and nothing made of one.
    #[inline]
    pub(super) fn is_memory(&self) -> bool {
        self.names.is_string_io(self.value)
    }

    /// The rest of a `StringIO` that may be read and has not ended.
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

    /// Whether it is an `IO` whose `read` and `getbyte` are those of Ruby itself, and its framer may read ahead.
    #[inline]
    pub(super) fn reads_ahead(&self) -> bool {
        let value = self.value.as_raw();
        // SAFETY: a live object, which begins with an RBasic, and interned names. The class may be a singleton one.
        unsafe {
            rb_sys::RB_TYPE_P(value, ruby_value_type::RUBY_T_FILE)
                && {
                    let class = (*(value as *const RBasic)).klass;
                    [self.names.read, self.names.getbyte]
                        .iter()
                        .all(|&name| rb_sys::rb_method_basic_definition_p(class, name) != 0)
                }
                && rb_ivar_get(self.framer.as_raw(), self.names.read_ahead) != Qfalse as VALUE
        }
    }

    /// The next two bytes of a stream that [reads ahead](Self::reads_ahead); `None` at its end.
    pub(super) fn read_two(&self) -> Result<Option<[u8; 2]>, Error> {
        let nil = Qnil as VALUE;
        // SAFETY: as above.
        let both = protect(|| unsafe {
            let first = self.call(self.names.getbyte);
            let second = if first == nil { nil } else { self.call(self.names.getbyte) };
            match (Fixnum::from_value(Value::from_raw(first)), Fixnum::from_value(Value::from_raw(second))) {
                (Some(first), Some(second)) => rb_sys::LONG2FIX((first.to_i64() << 8 | second.to_i64()) as _),
                _ => nil,
            }
        })?;
        // SAFETY: made above.
        let both = Fixnum::from_value(unsafe { Value::from_raw(both) });
        Ok(both.map(|both| (both.to_i64() as u16).to_be_bytes()))
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
