//! Memory figures of the process, from `/proc/self/status`.

use std::fs;

/// Peak resident set size in bytes; `None` on systems without `/proc`.
pub fn peak_memory() -> Option<u64> {
    bytes_of_field(&status()?, "VmHWM:")
}

/// Current resident set size in bytes; `None` on systems without `/proc`.
pub fn current_memory() -> Option<u64> {
    bytes_of_field(&status()?, "VmRSS:")
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
