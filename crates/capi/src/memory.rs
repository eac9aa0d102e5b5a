//! Memory of the caller: the only place where pointers of C become references.
//!
//! All functions here are `unsafe` for the same reason: the caller of the library promises that the memory exists, is initialised where
//! it is read, and is not used by another thread during the call. Everything that can be checked is checked.

use crate::status::wl_status;
use core::mem::MaybeUninit;

/// The address and length in bytes of memory, for the check of overlaps.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    start: usize,
    len: usize,
}

impl Extent {
    #[inline]
    pub(crate) fn of<T>(pointer: *const T, count: usize) -> Self {
        let count = if pointer.is_null() { 0 } else { count };
        Self { start: pointer.addr(), len: count.saturating_mul(size_of::<T>()) }
    }

    #[inline]
    fn overlaps(self, other: Self) -> bool {
        self.len > 0
            && other.len > 0
            && self.start < other.start.saturating_add(other.len)
            && other.start < self.start.saturating_add(self.len)
    }
}

/// Checks that no two of these overlap: one of them at least is written.
#[inline]
pub(crate) fn disjoint<const N: usize>(extents: [Extent; N]) -> Result<(), wl_status> {
    for (at, extent) in extents.iter().enumerate() {
        if extents[at + 1..].iter().any(|other| extent.overlaps(*other)) {
            return Err(wl_status::InvalidArgument);
        }
    }
    Ok(())
}

/// Checks that an input overlaps none of these outputs, which are written while it is read. Inputs may overlap each other.
#[inline]
pub(crate) fn apart(outputs: &[Extent], input: Extent) -> Result<(), wl_status> {
    let overlaps = outputs.iter().any(|output| output.overlaps(input));
    if overlaps { Err(wl_status::InvalidArgument) } else { Ok(()) }
}

#[inline]
fn check<T>(pointer: *const T, count: usize) -> Result<(), wl_status> {
    if pointer.is_null() {
        return Err(wl_status::NullPointer);
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    let end = bytes.and_then(|bytes| pointer.addr().checked_add(bytes));
    if !pointer.is_aligned() || end.is_none() {
        return Err(wl_status::InvalidArgument);
    }
    Ok(())
}

/// An array that is read. With a count of 0 any pointer is allowed.
#[inline]
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T], wl_status> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, count)?;
    // SAFETY: not null, aligned and of a possible length (`check`); readable by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(pointer, count) })
}

/// An array that is read and written.
#[inline]
pub(crate) unsafe fn array_mut<'a, T>(pointer: *mut T, count: usize) -> Result<&'a mut [T], wl_status> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(pointer, count)?;
    // SAFETY: not null, aligned and of a possible length (`check`); readable, writable and not shared by the caller's promise, and
    // the functions of this crate check that an array that is written and their other arguments are disjoint.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer, count) })
}

/// An array that is only written.
#[inline]
pub(crate) unsafe fn out_array<'a, T>(
    pointer: *mut T,
    count: usize,
) -> Result<&'a mut [MaybeUninit<T>], wl_status> {
    // SAFETY: as `array_mut`; `MaybeUninit` has the same layout and needs no initialised memory.
    unsafe { array_mut(pointer.cast::<MaybeUninit<T>>(), count) }
}

/// A place for a result. It is no reference, which no other argument might overlap.
pub(crate) struct Slot<T>(*mut T);

impl<T> Slot<T> {
    /// Writes the result, once the arguments that it may overlap have been read.
    #[inline]
    pub(crate) fn write(&self, value: T) {
        // SAFETY: not null and aligned (`check`, in `out`); writable by the caller's promise.
        unsafe { self.0.write(value) }
    }
}

/// A single value that is only written.
#[inline]
pub(crate) unsafe fn out<T>(pointer: *mut T) -> Result<Slot<T>, wl_status> {
    check(pointer, 1)?;
    Ok(Slot(pointer))
}

/// A single value that is read.
#[inline]
pub(crate) unsafe fn read<T: Copy>(pointer: *const T) -> Result<T, wl_status> {
    check(pointer, 1)?;
    // SAFETY: not null and aligned (`check`); initialised by the caller's promise.
    Ok(unsafe { *pointer })
}

/// Copies `bytes` to a buffer, and stores their number in `len`. If they do not fit, only the number is stored.
pub(crate) unsafe fn copy_out(
    bytes: &[u8],
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> Result<(), wl_status> {
    disjoint([Extent::of(buffer, capacity), Extent::of(len, 1)])?;
    // SAFETY: the caller's promise is passed on.
    let (buffer, len) = unsafe { (out_array(buffer, capacity)?, out(len)?) };
    len.write(bytes.len());
    let room = buffer.get_mut(..bytes.len()).ok_or(wl_status::BufferTooSmall)?;
    // SAFETY: `room` has this length, and was made from another allocation than `bytes`.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), room.as_mut_ptr().cast(), bytes.len()) };
    Ok(())
}

/// Copies the front of these slices to a buffer; returns the number of bytes.
pub(crate) fn gather(slices: &[&[u8]], buffer: &mut [MaybeUninit<u8>]) -> usize {
    let mut at = 0;
    for slice in slices {
        let len = slice.len().min(buffer.len() - at);
        let room = &mut buffer[at..at + len];
        // SAFETY: `room` has this length; a unique reference overlaps no shared one.
        unsafe { core::ptr::copy_nonoverlapping(slice.as_ptr(), room.as_mut_ptr().cast(), len) };
        at += len;
    }
    at
}

/// The structures of the configuration: integers and pointers without padding that has a meaning, so that every byte pattern is a value.
///
/// # Safety
/// The type is `repr(C)`, has only integers and pointers as fields, and the first is a `usize` with its size.
pub(crate) unsafe trait Versioned: Copy {
    /// The defaults, with the size of the whole structure.
    fn defaults() -> Self;
}

/// Checks the size of a structure as known to the caller. A longer one is from a newer header: it may say what this library cannot do.
fn check_size<T: Versioned>(size: usize) -> Result<(), wl_status> {
    let is_known = (size_of::<usize>()..=size_of::<T>()).contains(&size);
    if is_known { Ok(()) } else { Err(wl_status::InvalidArgument) }
}

/// Reads a structure that begins with its size, as known to the caller: fields that the caller does not know have their defaults. Null
/// is the default.
pub(crate) unsafe fn read_versioned<T: Versioned>(pointer: *const T) -> Result<T, wl_status> {
    let mut value = T::defaults();
    if pointer.is_null() {
        return Ok(value);
    }
    // SAFETY: the size is the first field (`Versioned`).
    let size = unsafe { read(pointer.cast::<usize>())? };
    check_size::<T>(size)?;
    // SAFETY: `size` bytes exist by the caller's promise, they fit `T`, and every byte pattern is a value (`Versioned`).
    unsafe { core::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast::<u8>(), size) };
    Ok(value)
}

/// Writes the defaults into a structure of `size` bytes, as known to the caller: the fields that it does not know are not written.
pub(crate) unsafe fn write_defaults<T: Versioned>(pointer: *mut T, size: usize) -> Result<(), wl_status> {
    check(pointer.cast_const().cast::<usize>(), 1)?;
    check_size::<T>(size)?;
    let value = T::defaults();
    // SAFETY: not null and aligned (`check`); `size` bytes are writable by the caller's promise, and `T` has as many (`check_size`). The
    // size is the first field (`Versioned`).
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), pointer.cast::<u8>(), size);
        pointer.cast::<usize>().write(size);
    }
    Ok(())
}
