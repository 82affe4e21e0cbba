//! What the allocator does with memory that operations give back.

use libmimalloc_sys::{mi_option_set_default, mi_option_t};

/// Keeps it for a quarter of a second, so that the next operation of its size takes it as it is; `MIMALLOC_PURGE_DELAY` in the
/// environment says otherwise. The allocator's own hundredth of a second is less than one large product takes: then the memory
/// of most results comes from the system anew, page by page and zeroed, which takes 4 to 8 % of a run. With half a second,
/// memory begins to grow with the input (`scripts/scale.py --formats parquet`).
pub fn keep() {
    /// Milliseconds; the crate has no name for it.
    const PURGE_DELAY: mi_option_t = 15;
    // SAFETY: the allocator is compiled in and has this option, which may be set at any time.
    unsafe { mi_option_set_default(PURGE_DELAY, 250) }
}
