//! Storage of packed elements in whole cache lines.

use std::alloc;
use std::slice;

/// Packed elements of a cache line.
pub(super) const LINE_ELEMENTS: usize = 16;

/// 16 packed elements aligned to a cache line, so that a vector load from the start of a line never crosses
/// one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct CacheLine(pub(super) [u32; LINE_ELEMENTS]);

/// Lines of zeros. The pages are not touched here but by the threads that write them first.
pub(super) fn zeroed_lines(count: usize) -> Vec<CacheLine> {
    let layout = alloc::Layout::array::<CacheLine>(count).expect("the lines fit into the address space");
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: `layout` has a nonzero size, as `count` is not 0. The allocation comes from the global
    // allocator with the layout of `count` lines, which is the layout `Vec` frees it with, and all-zero bytes
    // are valid lines.
    unsafe {
        let data = alloc::alloc_zeroed(layout);
        if data.is_null() {
            alloc::handle_alloc_error(layout);
        }
        Vec::from_raw_parts(data.cast(), count, count)
    }
}

/// The first `count` lines of memory that is reused from call to call, which grows to hold them. They hold
/// what they held before.
pub(super) fn at_least(lines: &mut Vec<CacheLine>, count: usize) -> &mut [CacheLine] {
    if lines.len() < count {
        lines.resize(count, CacheLine([0; LINE_ELEMENTS]));
    }
    &mut lines[..count]
}

/// The packed elements of some lines.
pub(super) fn elements(lines: &[CacheLine]) -> &[u32] {
    // SAFETY: `CacheLine` is `repr(C)` with 16 u32 and no padding, so the slice covers `16 · lines.len()`
    // initialised u32.
    unsafe { slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LINE_ELEMENTS) }
}

/// The packed elements of some lines, mutably.
pub(super) fn elements_mut(lines: &mut [CacheLine]) -> &mut [u32] {
    // SAFETY: `CacheLine` is `repr(C)` with 16 u32 and no padding, so the slice covers `16 · lines.len()`
    // initialised u32. The result borrows `lines` mutably, so there is no other reference to them.
    unsafe { slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE_ELEMENTS) }
}

/// The lines that some bytes are; `None` if they are no whole lines, or not aligned to them.
pub(super) fn lines_of_bytes(bytes: &[u8]) -> Option<&[CacheLine]> {
    let is_aligned = bytes.as_ptr().addr().is_multiple_of(align_of::<CacheLine>());
    if !is_aligned || !bytes.len().is_multiple_of(size_of::<CacheLine>()) {
        return None;
    }
    // SAFETY: the pointer is aligned to a line, the slice has the bytes of `len / 64` of them, and all bytes
    // are valid lines. The result borrows `bytes`.
    Some(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<CacheLine>()) })
}
