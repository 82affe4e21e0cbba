//! Catches the panics of libraries that panic on malformed input.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside [`catch_panic`].
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` and returns its result, or `None` if it panicked. The message of a panic on this thread is not
/// printed; the panic hook still runs for other threads.
///
/// Values that `f` was changing when it panicked may be inconsistent: drop them.
pub fn catch_panic<T>(f: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CATCHING.get() {
                previous(info);
            }
        }));
    });
    let was_catching = IS_CATCHING.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f)).ok();
    IS_CATCHING.set(was_catching);
    result
}
