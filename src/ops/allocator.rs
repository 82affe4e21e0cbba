//! Settings of the allocator: whether freed memory is kept for the next operation or returned to the system,
//! and no huge pages.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libmimalloc_sys::{mi_collect, mi_option_set_default, mi_option_t, mi_register_error};

use crate::sys::memory::on_refusal;

/// `ENOMEM` and `EOVERFLOW` of errno.h: there is no memory for an allocation, or no address space is that
/// large.
#[cfg(unix)]
const REFUSALS: [c_int; 2] =
    [rustix::io::Errno::NOMEM.raw_os_error(), rustix::io::Errno::OVERFLOW.raw_os_error()];
#[cfg(not(unix))]
const REFUSALS: [c_int; 2] = [12, 132];

/// `mi_option_purge_delay`: milliseconds before freed memory is returned. `libmimalloc-sys` has no name for
/// it.
const PURGE_DELAY: mi_option_t = 15;

/// Whether this is the program's allocator, whose settings are for this crate to choose: not in a program
/// that uses the library.
static IS_CONFIGURED: AtomicBool = AtomicBool::new(false);

/// Keeps freed memory for 250 ms, so that the next operation of the same size reuses it, if mimalloc is the
/// allocator of the program. What a program that uses the library sets, and `MIMALLOC_PURGE_DELAY` in the
/// environment, take precedence.
///
/// The default of 10 ms is shorter than one large GEMM: the memory of most results would be requested again,
/// page by page and zeroed, which takes 4 to 8 % of a run. With 500 ms, memory begins to grow with the input
/// (`scripts/check/scale.py --formats parquet`).
pub fn keep_freed_memory() {
    set(PURGE_DELAY, 250);
}

/// Returns the memory that loading has freed to the system: an idle thread returns none, so that each of
/// several processes with one model would keep some megabytes. From now on it is returned after 10 ms, the
/// default.
pub fn return_freed_memory() {
    if !IS_CONFIGURED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: any thread may collect its heap at any time.
    let collect = || unsafe { mi_collect(true) };
    collect();
    rayon::broadcast(|_| collect());
    set(PURGE_DELAY, 10);
}

/// Settings for the start of the process and for loading a model: freed memory is returned at once until
/// [`return_freed_memory`] is called, no huge pages, one arena of the C library, and a message where the
/// system refuses memory.
///
/// Each thread would fill many of its huge pages in part only: 10 to 30 MB in a process that encodes one
/// text, and 11 MB with two workers and the sizes of all-MiniLM-L6-v2. Where a virtual machine has to get
/// them from its host first, a run takes 10 to 20 ms more; what they save in address translation is below 0.5
/// %, and nothing with the sizes of BERT-base.
///
/// Without this call, [`return_freed_memory`] does nothing.
pub fn configure_at_start() {
    IS_CONFIGURED.store(true, Ordering::Relaxed);
    #[cfg(not(unix))]
    report_refusals();
    set(PURGE_DELAY, 0);
    disallow_huge_pages();
    use_one_c_arena();
}

/// Makes the allocator call [`on_refusal`] where it would return no memory: Rust would abort the process. May
/// be called before `main`: it stores a pointer.
pub fn report_refusals() {
    extern "C" fn on_error(code: c_int, _: *mut c_void) {
        if REFUSALS.contains(&code) {
            on_refusal();
        }
    }
    // SAFETY: the function may be called at any time from any thread, and has no argument of its own to be
    // valid.
    unsafe { mi_register_error(Some(on_error), ptr::null_mut()) };
}

/// Limits the arenas of glibc's malloc, from which C code allocates little, to one. Otherwise each thread
/// reserves 64 MB of address space, which may be limited (`ulimit -v`).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn use_one_c_arena() {
    use std::ffi::c_int;
    /// `M_ARENA_MAX` of malloc.h.
    const ARENA_MAX: c_int = -8;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: glibc has this function with this signature and parameter (mallopt(3)), and it locks what it
    // changes.
    unsafe { mallopt(ARENA_MAX, 1) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn use_one_c_arena() {}

/// Best effort: a system without this setting decides itself.
#[cfg(target_os = "linux")]
fn disallow_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

#[cfg(not(target_os = "linux"))]
fn disallow_huge_pages() {}

fn set(option: mi_option_t, value: c_long) {
    // SAFETY: the option exists in the version of mimalloc that is compiled in, and options may be set at any
    // time from any thread.
    unsafe { mi_option_set_default(option, value) }
}
