//! Ruby objects in memory that Ruby's collector does not scan by itself. There are two ways to keep one there, and a test
//! fails when a file stores a `VALUE` in any other:
//!
//! * [`Held`], inside an object of a class that [`managed!`] defines. Making one takes the [`Owner`], for the write barrier,
//!   and only managed objects are owners. Their `mark` traces every field, and a field that it does not name does not compile.
//! * [`Immortal`], in a static, registered with the collector for good and set while the library loads. No method of it runs
//!   code behind a lock, so that Ractors cannot block each other.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;

use magnus::gc::Marker;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Ruby, TypedData, Value};
use rb_sys::VALUE;

use crate::exclusive::{Detachable, Exclusive};

/// A class whose objects are defined by [`managed!`].
pub(crate) trait Managed: TypedData {
    /// Old objects are scanned again only after a write barrier.
    const WRITE_BARRIER: bool;
}

/// The object in whose memory a [`Held`] lies.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    /// Set when the object needs write barriers.
    barrier: Option<VALUE>,
}

impl Owner {
    #[inline]
    pub(crate) fn of<T: Managed>(object: Obj<T>) -> Self {
        Self { barrier: T::WRITE_BARRIER.then(|| object.as_raw()) }
    }
}

/// A Ruby object that a managed object keeps alive, and in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held(VALUE);

impl Held {
    pub(crate) const NIL: Self = Self(rb_sys::Qnil as VALUE);
    pub(crate) const FALSE: Self = Self(rb_sys::Qfalse as VALUE);

    /// `value`, which `owner` holds from now on.
    #[inline]
    pub(crate) fn new(owner: Owner, value: VALUE) -> Self {
        if let Some(owner) = owner.barrier
            && !rb_sys::SPECIAL_CONST_P(value)
        {
            // SAFETY: both are live objects.
            unsafe { rb_sys::rb_gc_writebarrier(owner, value) };
        }
        Self(value)
    }

    #[inline]
    pub(crate) const fn raw(self) -> VALUE {
        self.0
    }

    #[inline]
    pub(crate) fn value(self) -> Value {
        // SAFETY: its owner keeps it alive.
        unsafe { Value::from_raw(self.0) }
    }

    #[inline]
    pub(crate) const fn is_nil(self) -> bool {
        self.0 == rb_sys::Qnil as VALUE
    }
}

/// Memory of a managed object.
pub(crate) trait Trace {
    /// Marks every object that is held here.
    fn trace(&self, marker: &Marker);
}

impl Trace for Held {
    fn trace(&self, marker: &Marker) {
        marker.mark(self.value());
    }
}

impl<T: Trace + Copy> Trace for Cell<T> {
    fn trace(&self, marker: &Marker) {
        self.get().trace(marker);
    }
}

impl<T: Trace> Trace for Exclusive<T> {
    fn trace(&self, marker: &Marker) {
        // SAFETY: marking happens while it is borrowed too, and what holds objects is never half changed when Ruby allocates.
        unsafe { &*self.as_ptr() }.trace(marker);
    }
}

/// A type that holds no objects.
pub(crate) trait Plain {}

impl<T: Plain> Plain for Box<T> {}
impl<T: Plain> Plain for Option<T> {}

/// Marking happens while a thread works on it without the GVL too: it is not looked at.
impl<T: Plain> Trace for Detachable<T> {
    fn trace(&self, _: &Marker) {}
}

impl<T: Trace> Trace for Box<T> {
    fn trace(&self, marker: &Marker) {
        T::trace(self, marker);
    }
}

impl<T: Trace> Trace for Option<T> {
    fn trace(&self, marker: &Marker) {
        self.iter().for_each(|item| item.trace(marker));
    }
}

impl<T: Trace> Trace for Vec<T> {
    fn trace(&self, marker: &Marker) {
        self.iter().for_each(|item| item.trace(marker));
    }
}

impl<T: Trace> Trace for VecDeque<T> {
    fn trace(&self, marker: &Marker) {
        self.iter().for_each(|item| item.trace(marker));
    }
}

impl<T: Trace, const N: usize> Trace for [T; N] {
    fn trace(&self, marker: &Marker) {
        self.iter().for_each(|item| item.trace(marker));
    }
}

impl<A: Trace, B: Trace> Trace for (A, B) {
    fn trace(&self, marker: &Marker) {
        self.0.trace(marker);
        self.1.trace(marker);
    }
}

impl<K: Trace, V: Trace, S> Trace for HashMap<K, V, S> {
    fn trace(&self, marker: &Marker) {
        for (key, value) in self {
            key.trace(marker);
            value.trace(marker);
        }
    }
}

/// Types that hold no objects.
macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(impl crate::held::Plain for $type {}

        impl crate::held::Trace for $type {
            #[inline]
            fn trace(&self, _: &magnus::gc::Marker) {}
        })*
    };
}

/// Defines how a struct is traced. Every field is named: one that is not does not compile.
macro_rules! traced {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl crate::held::Trace for $type {
            fn trace(&self, marker: &magnus::gc::Marker) {
                let Self { $($field),* } = self;
                $(crate::held::Trace::trace($field, marker);)*
            }
        }
    };
}

/// Defines the objects of a Ruby class: `managed!(Type as "Class" { fields }, size = fn)`, with `write_barrier` before `size`
/// for a class whose objects are many and live long. `load` looks the class up; the library calls it while it loads.
macro_rules! managed {
    ($type:ident as $class:literal { $($field:ident),* $(,)? }, size = $size:expr) => {
        crate::held::managed!(@define $type, $class, { $($field),* }, false, [], $size);
    };
    ($type:ident as $class:literal { $($field:ident),* $(,)? }, write_barrier, size = $size:expr) => {
        crate::held::managed!(@define $type, $class, { $($field),* }, true, [.wb_protected()], $size);
    };
    (@define $type:ident, $class:literal, { $($field:ident),* }, $barrier:literal, [$($flags:tt)*], $size:expr) => {
        crate::held::traced!($type { $($field),* });

        impl magnus::DataTypeFunctions for $type {
            fn mark(&self, marker: &magnus::gc::Marker) {
                crate::held::Trace::trace(self, marker);
            }

            fn size(&self) -> usize {
                let heap: fn(&$type) -> usize = $size;
                size_of::<Self>() + heap(self)
            }
        }

        impl crate::held::Managed for $type {
            const WRITE_BARRIER: bool = $barrier;
        }

        // SAFETY: the class is that of the objects that `define_alloc_func::<Self>` and `obj_wrap` make; `mark` marks all that
        // they hold.
        unsafe impl magnus::TypedData for $type {
            fn class(ruby: &magnus::Ruby) -> magnus::RClass {
                Self::class_cell().get(ruby)
            }

            fn data_type() -> &'static magnus::DataType {
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!($class, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without NUL"),
                };
                static DATA_TYPE: magnus::DataType = magnus::typed_data::DataTypeBuilder::<$type>::new(NAME)
                    .mark()
                    .size()
                    .free_immediately()
                    $($flags)*
                    .build();
                &DATA_TYPE
            }
        }

        impl $type {
            fn class_cell() -> &'static crate::held::Immortal<magnus::RClass> {
                static CLASS: crate::held::Immortal<magnus::RClass> = crate::held::Immortal::new();
                &CLASS
            }

            /// Called once, with the class that `$class` is.
            pub(crate) fn load(ruby: &magnus::Ruby, class: magnus::RClass) {
                Self::class_cell().set(ruby, class);
            }
        }
    };
}

pub(crate) use {managed, plain, traced};

plain!(bool, u8, u16, u32, u64, usize, i32, i64, f64, String, std::time::Instant, std::time::Duration);

/// A Ruby object that is registered with the collector for good: a class, a Symbol, or a frozen String or Hash.
#[derive(Clone, Copy)]
pub(crate) struct Registered<T>(T);

// SAFETY: Ractors share such objects, and they are neither collected nor moved.
unsafe impl<T> Send for Registered<T> {}
// SAFETY: likewise.
unsafe impl<T> Sync for Registered<T> {}

impl<T: ReprValue> Registered<T> {
    pub(crate) fn new(ruby: &Ruby, value: T) -> Self {
        ruby.gc_register_mark_object(value);
        Self(value)
    }

    #[inline]
    pub(crate) const fn get(&self) -> T {
        self.0
    }
}

/// A Ruby object in a static.
pub(crate) struct Immortal<T>(OnceLock<Registered<T>>);

impl<T: ReprValue> Immortal<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Called while the library loads, by one thread.
    pub(crate) fn set(&self, ruby: &Ruby, value: T) {
        let _ = self.0.set(Registered::new(ruby, value));
    }

    /// # Panics
    /// When it was not [set](Self::set).
    #[inline]
    pub(crate) fn get(&self, _: &Ruby) -> T {
        self.0.get().expect("set while the library loads").get()
    }
}
