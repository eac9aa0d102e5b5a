//! What frames are read from: any object with `read(length)`. A `StringIO` is read where it lies.

use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::{Error, RString, Ruby, TryConvert, Value};
use rb_sys::{Qfalse, Qnil, VALUE, rb_funcallv};

use super::names::Names;

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

    /// Shows `look` what is left of a `StringIO` that may be read, and moves on by as many bytes as it answers. `look` may make
    /// Strings, but no Ruby may run in it, and nothing that must be dropped may live there meanwhile.
    #[inline]
    pub(super) fn take(&self, look: impl FnOnce(&[u8]) -> Option<usize>) -> Result<(), Error> {
        // SAFETY: a live object and interned names; nothing here has a destructor that an exception could skip. A StringIO's
        // string is a String or nil, and its position a Fixnum.
        protect(|| unsafe {
            let string = self.call(self.names.string);
            if self.call(self.names.closed_read) != Qfalse as VALUE || string == Qnil as VALUE {
                return Qnil as VALUE;
            }
            let pos = rb_sys::rb_num2long(self.call(self.names.pos));
            let (start, len) = (rb_sys::RSTRING_PTR(string), rb_sys::RSTRING_LEN(string));
            if pos < 0 || pos >= len {
                return Qnil as VALUE;
            }
            let bytes =
                std::slice::from_raw_parts(start.add(pos as usize).cast::<u8>(), (len - pos) as usize);
            let used = look(bytes);
            std::hint::black_box(string);
            if let Some(used) = used {
                let to = rb_sys::rb_int2inum(pos as isize + used as isize);
                rb_funcallv(self.value.as_raw(), self.names.set_pos, 1, &to);
            }
            Qnil as VALUE
        })
        .map(drop)
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
