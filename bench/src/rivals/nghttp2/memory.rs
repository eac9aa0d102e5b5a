//! Memory from Rust's allocator for nghttp2, so that its allocations are counted too.

use crate::allocation;
use libnghttp2_sys::nghttp2_mem;
use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr;

/// The functions, at an address that stays: HPACK contexts keep it.
struct Counted(nghttp2_mem);

// SAFETY: nothing writes to it, and its `mem_user_data` is null.
unsafe impl Sync for Counted {}

static COUNTED: Counted = Counted(nghttp2_mem {
    mem_user_data: ptr::null_mut(),
    malloc: Some(malloc),
    free: Some(free),
    calloc: Some(calloc),
    realloc: Some(realloc),
});

/// The allocation functions for nghttp2: these while allocations are counted, otherwise null, so that nghttp2 uses its
/// own.
pub(super) fn functions() -> *mut nghttp2_mem {
    match allocation::is_counting() {
        true => (&raw const COUNTED.0).cast_mut(),
        false => ptr::null_mut(),
    }
}

/// Each block begins with its length, which `free` needs.
const HEADER: usize = 16;

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len + HEADER, HEADER).expect("a size that C asked for")
}

extern "C" fn malloc(len: usize, _: *mut c_void) -> *mut c_void {
    // SAFETY: the layout is not empty; the block begins with room for its length.
    unsafe {
        let block = std::alloc::alloc(layout(len));
        block.cast::<usize>().write(len);
        block.add(HEADER).cast()
    }
}

extern "C" fn free(block: *mut c_void, _: *mut c_void) {
    if !block.is_null() {
        // SAFETY: the block came from `malloc` or `realloc` above, which wrote its length in front.
        unsafe {
            let block = block.cast::<u8>().sub(HEADER);
            std::alloc::dealloc(block, layout(block.cast::<usize>().read()));
        }
    }
}

extern "C" fn calloc(count: usize, len: usize, user_data: *mut c_void) -> *mut c_void {
    let block = malloc(count * len, user_data);
    // SAFETY: `malloc` returned at least this many bytes.
    unsafe { ptr::write_bytes(block.cast::<u8>(), 0, count * len) };
    block
}

extern "C" fn realloc(block: *mut c_void, len: usize, user_data: *mut c_void) -> *mut c_void {
    if block.is_null() {
        return malloc(len, user_data);
    }
    // SAFETY: as in `free`; the new length is written in front of the new block.
    unsafe {
        let block = block.cast::<u8>().sub(HEADER);
        let old = layout(block.cast::<usize>().read());
        let block = std::alloc::realloc(block, old, layout(len).size());
        block.cast::<usize>().write(len);
        block.add(HEADER).cast()
    }
}
