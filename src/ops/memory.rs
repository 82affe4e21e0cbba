//! What the allocator does with memory that operations give back.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};

use crate::kernels::isa::Isa;

/// Milliseconds that freed memory is kept; the crate has no name for these options.
const PURGE_DELAY: mi_option_t = 15;
/// Whether memory is taken from the system piece by piece, and not from a range of huge pages.
const DISALLOW_ARENA_ALLOC: mi_option_t = 27;

/// Keeps it for a quarter of a second, so that the next operation of its size takes it as it is; `MIMALLOC_PURGE_DELAY` in the
/// environment says otherwise. The allocator's own hundredth of a second is less than one large product takes: then the memory
/// of most results comes from the system anew, page by page and zeroed, which takes 4 to 8 % of a run. With half a second,
/// memory begins to grow with the input (`scripts/scale.py --formats parquet`).
pub fn keep() {
    set(PURGE_DELAY, 250);
    set(DISALLOW_ARENA_ALLOC, 0);
}

/// Takes and keeps no more than is asked for, until [`keep`]: huge pages that each thread fills in part, and memory that is kept, would
/// stand beside the weights. A process that encodes one text takes 10 MB less; only where f32 is packed for tiles, in half as
/// much memory again, is that needed.
pub fn spare() {
    if Isa::check().is_ok() && Isa::best().tile_unit().is_some() {
        set(PURGE_DELAY, 0);
        set(DISALLOW_ARENA_ALLOC, 1);
    }
}

fn set(option: mi_option_t, value: c_long) {
    // SAFETY: the allocator is compiled in and has these options, which may be set at any time.
    unsafe { mi_option_set_default(option, value) }
}
