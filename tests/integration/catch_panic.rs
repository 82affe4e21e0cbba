//! `catch_panic` silences the panics of its own code and thread, and no others.

use std::process::Command;
use std::sync::Mutex;
use std::{env, panic, thread};

use sconce::sys::catch_panic::catch_panic;

/// Messages that the panic hook received.
static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Set in the process that this test starts for itself.
const CHILD: &str = "SCONCE_TEST_OF_PANIC_HOOK";

#[test]
fn only_caught_panics_of_this_thread_are_silent() {
    if env::var_os(CHILD).is_none() {
        // The panic hook is global: other tests of this process must not see this one's hook.
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "catch_panic::only_caught_panics_of_this_thread_are_silent"]).env(CHILD, "1");
        let output = child.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
        return;
    }
    panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or_default().to_owned();
        PRINTED.lock().unwrap().push(message);
    }));
    assert_eq!(catch_panic(|| 7), Some(7));
    let outer = catch_panic(|| {
        assert_eq!(catch_panic(|| -> u8 { panic!("inner") }), None);
        let other_thread_panicked = thread::spawn(|| panic!("of another thread")).join().is_err();
        assert!(other_thread_panicked);
        panic!("outer, after the inner");
    });
    assert_eq!(outer, None::<()>);
    assert!(thread::spawn(|| panic!("after")).join().is_err());
    assert!(panic::catch_unwind(|| panic!("not caught by catch_panic")).is_err());
    let printed = std::mem::take(&mut *PRINTED.lock().unwrap());
    let _ = panic::take_hook();
    assert_eq!(printed, ["of another thread", "after", "not caught by catch_panic"]);
}
