//! Libraries that panic on broken files, kept from taking the program with them.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread runs guarded code now.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of a library that panics on some broken files; `None` if it does. What a panic of this thread would
/// print is not printed; other threads are left alone.
///
/// Whatever the code was changing may be half changed after a panic: do not use it again.
pub fn guard<T>(f: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                before(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f)).ok();
    GUARDED.set(outer);
    result
}
