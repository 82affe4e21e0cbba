//! Panics of guarded code stay unseen, and only those.

use std::panic;
use std::sync::Mutex;
use std::thread;

use sconce::guard::guard;

static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn a_guard_is_for_its_own_thread() {
    panic::set_hook(Box::new(|info| {
        let said = info.payload_as_str().unwrap_or_default().to_owned();
        HEARD.lock().unwrap().push(said);
    }));
    assert_eq!(guard(|| 7), Some(7));
    let other = guard(|| {
        assert_eq!(guard(|| -> u8 { panic!("inner") }), None);
        let other = thread::spawn(|| panic!("of another thread")).join().is_err();
        assert!(other);
        panic!("outer, after the inner");
    });
    assert_eq!(other, None::<()>);
    assert!(thread::spawn(|| panic!("after")).join().is_err());
    assert!(panic::catch_unwind(|| panic!("unguarded")).is_err());
    let heard = std::mem::take(&mut *HEARD.lock().unwrap());
    let _ = panic::take_hook();
    assert_eq!(heard, ["of another thread", "after", "unguarded"]);
}
