//! Objects of the gem: their instance variables, their methods, and values.

use std::ffi::c_int;

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::ReprValue;
use magnus::{Error, RClass, RString, Value};
use rb_sys::{ID, Qnil, VALUE, rb_call_super_kw, rb_funcallv, rb_ivar_get, rb_ivar_set};

use crate::guard::protect;

pub(super) const NIL: VALUE = Qnil as VALUE;

/// An instance variable, nil where there is none.
#[inline]
pub(super) fn get(object: VALUE, name: ID) -> VALUE {
    // SAFETY: a live object; reading raises nothing.
    unsafe { rb_ivar_get(object, name) }
}

/// Sets instance variables that exist, so that nothing is allocated.
///
/// # Errors
/// The object is frozen.
#[inline]
pub(super) fn set(object: VALUE, variables: &[(ID, VALUE)]) -> Result<(), Error> {
    if value(object).is_frozen() {
        // SAFETY: a live object.
        return protect(|| unsafe { rb_sys::rb_error_frozen_object(object) }).map(drop);
    }
    for &(name, value) in variables {
        // SAFETY: live objects. To an object that is not frozen and has the variable, this is a store, which raises nothing.
        unsafe { rb_ivar_set(object, name, value) };
    }
    Ok(())
}

/// Sets an instance variable that may be a new one, unless it has the value already.
///
/// # Errors
/// The object is frozen, or there is no memory.
#[inline]
pub(super) fn set_new(object: VALUE, name: ID, value: VALUE) -> Result<(), Error> {
    if get(object, name) == value {
        return Ok(());
    }
    // SAFETY: live objects, and a closure that has nothing to drop.
    protect(|| unsafe { rb_ivar_set(object, name, value) }).map(drop)
}

/// An object of a class of ordinary objects, without `initialize`, with these instance variables.
///
/// # Errors
/// There is no memory.
#[inline]
pub(super) fn make(class: RClass, variables: &[(ID, VALUE)]) -> Result<VALUE, Error> {
    // SAFETY: the closure has nothing to drop.
    protect(|| unsafe { make_unprotected(class.as_raw(), variables) })
}

/// # Safety
/// As for [`make`], and a caller without anything to drop, because this raises.
#[inline]
pub(super) unsafe fn make_unprotected(class: VALUE, variables: &[(ID, VALUE)]) -> VALUE {
    // SAFETY: the caller vouches for it.
    unsafe {
        let object = (super::names::names().allocate)(class);
        for &(name, value) in variables {
            rb_ivar_set(object, name, value);
        }
        object
    }
}

/// Calls a method, public or not.
///
/// # Errors
/// The exception that the method raises.
#[inline]
pub(super) fn call(object: VALUE, name: ID, arguments: &[VALUE]) -> Result<VALUE, Error> {
    // SAFETY: live objects, and as many as the length says.
    protect(|| unsafe { rb_funcallv(object, name, arguments.len() as _, arguments.as_ptr()) })
}

/// Calls the method that this one comes before, with the same block and keywords.
///
/// # Errors
/// The exception that the method raises.
pub(super) fn call_super(arguments: &[Value]) -> Result<Value, Error> {
    let keywords = keywords_given();
    // SAFETY: called by a method, with live objects; a `Value` is a `VALUE`.
    let result = protect(|| unsafe {
        rb_call_super_kw(arguments.len() as _, arguments.as_ptr().cast(), c_int::from(keywords))
    })?;
    // SAFETY: it came from Ruby just now.
    Ok(unsafe { Value::from_raw(result) })
}

/// Whether the last argument of this method is a Hash of keywords.
#[inline]
pub(super) fn keywords_given() -> bool {
    // SAFETY: called by a method.
    unsafe { rb_sys::rb_keyword_given_p() != 0 }
}

/// The class of an object, its singleton class where it has one; nil for values that are no objects in memory.
#[inline]
pub(super) fn class_of(object: VALUE) -> VALUE {
    if rb_sys::SPECIAL_CONST_P(object) {
        return NIL;
    }
    crate::http2::class_of(object)
}

/// A small Integer.
#[inline]
pub(super) fn number(value: VALUE) -> Option<i64> {
    // SAFETY: a Fixnum.
    rb_sys::FIXNUM_P(value).then(|| unsafe { rb_sys::FIX2LONG(value) })
}

/// An Integer of a number of at most 62 bits.
#[inline]
pub(super) fn integer(number: i64) -> VALUE {
    // SAFETY: no object is made of a number of this size.
    unsafe { rb_sys::LONG2FIX(number) }
}

#[inline]
pub(super) fn string(value: VALUE) -> Option<RString> {
    // SAFETY: a live object.
    RString::from_value(unsafe { Value::from_raw(value) })
}

#[inline]
pub(super) fn value(object: VALUE) -> Value {
    // SAFETY: a live object.
    unsafe { Value::from_raw(object) }
}
