//! Settings of the allocator: whether freed memory is kept for the next operation or returned to the system.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};

use crate::kernels::isa::Isa;

/// `mi_option_purge_delay`: milliseconds before freed memory is returned. `libmimalloc-sys` has no name for it.
const PURGE_DELAY: mi_option_t = 15;
/// `mi_option_disallow_arena_alloc`: memory is requested from the system as needed, not from a reserved arena of huge
/// pages.
const DISALLOW_ARENA_ALLOC: mi_option_t = 27;

/// Keeps freed memory for 250 ms, so that the next operation of the same size reuses it. `MIMALLOC_PURGE_DELAY` in the
/// environment takes precedence.
///
/// The default of 10 ms is shorter than one large GEMM: the memory of most results would be requested again, page by
/// page and zeroed, which takes 4 to 8 % of a run. With 500 ms, memory begins to grow with the input (`scripts/check/scale.py
/// --formats parquet`).
pub fn keep_freed_memory() {
    set(PURGE_DELAY, 250);
    set(DISALLOW_ARENA_ALLOC, 0);
}

/// Returns freed memory at once and uses no arenas, until [`keep_freed_memory`] is called; does nothing on ISAs without
/// tiles.
///
/// Arenas that each thread fills in part, and memory that is kept, would add to the weights: 10 MB in a process that
/// encodes one text. Only with tiles, where packed f32 weights take 1.5 times their size, does that matter.
pub fn return_freed_memory() {
    if Isa::check().is_ok() && Isa::selected().tile_unit().is_some() {
        set(PURGE_DELAY, 0);
        set(DISALLOW_ARENA_ALLOC, 1);
    }
}

fn set(option: mi_option_t, value: c_long) {
    // SAFETY: both options exist in the version of mimalloc that is compiled in, and options may be set at any time
    // from any thread.
    unsafe { mi_option_set_default(option, value) }
}
