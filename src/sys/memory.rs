//! Memory of the process: figures from `/proc/self/status`, and what happens where there is none.

use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Peak resident set size in bytes; `None` on systems without `/proc`.
pub fn peak_memory() -> Option<u64> {
    bytes_of_field(&status()?, "VmHWM:")
}

/// Current resident set size in bytes; `None` on systems without `/proc`.
pub fn current_memory() -> Option<u64> {
    bytes_of_field(&status()?, "VmRSS:")
}

/// The memory that the process may use in bytes: the limit of its control group, else that of the machine.
/// `None` on systems without `/proc`.
pub fn memory_limit() -> Option<u64> {
    let machine = bytes_of_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let of_group = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = groups.into_iter().find_map(of_group).unwrap_or(u64::MAX);
    Some(machine.min(group))
}

thread_local! {
    /// Whether this thread is inside [`is_free`].
    static IS_PROBING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this much memory can be allocated now.
pub fn is_free(bytes: usize) -> bool {
    IS_PROBING.set(true);
    let is_free = Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    IS_PROBING.set(false);
    is_free
}

/// Ends the process with a message, because the system refuses memory for an allocation. Returns inside
/// [`is_free`].
pub fn on_refusal() {
    /// Whether a thread has reported it: the system may refuse memory to several at once.
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_PROBING.get() {
        while IS_REPORTED.swap(true, Ordering::Relaxed) {
            thread::sleep(Duration::from_secs(1));
        }
        let message = "sconce: error: out of memory: the system refuses more; raise the limit of the process (ulimit -v), or pass a \
                       smaller --max-memory, --batch-tokens or --threads\n";
        // Nothing may be allocated here.
        let _ = std::io::stderr().write_all(message.as_bytes());
        signal_hook::low_level::exit(1);
    }
}

fn status() -> Option<String> {
    fs::read_to_string("/proc/self/status").ok()
}

/// The value of a field such as `VmRSS:   1024 kB`, in bytes.
fn bytes_of_field(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::bytes_of_field;

    #[test]
    fn kilobytes_become_bytes() {
        let status = "Name:\tsconce\nVmHWM:\t  123456 kB\nVmRSS:\t     8 kB\nThreads:\t2\n";
        assert_eq!(bytes_of_field(status, "VmHWM:"), Some(123_456 * 1024));
        assert_eq!(bytes_of_field(status, "VmRSS:"), Some(8192));
        assert_eq!(bytes_of_field(status, "VmSwap:"), None);
        assert_eq!(bytes_of_field(status, "Threads:"), None);
    }
}
