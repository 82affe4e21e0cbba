//! Standard output: whether it was open at start-up, and what it is connected to.

#[cfg(unix)]
use std::fs::File;
use std::io::{self, IsTerminal, Write};
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether standard output was closed when the process started.
#[cfg(unix)]
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

// Runs before `main`: Rust's runtime opens /dev/null in place of a closed standard output, which cannot be
// told afterwards from an output that the user redirected to /dev/null.
//
// SAFETY: a constructor must not rely on anything that Rust's runtime sets up before `main`. This one calls
// fcntl(F_GETFD) on descriptor 1, which is valid for any descriptor number, open or not, and stores an
// atomic.
#[cfg(unix)]
ctor::declarative::ctor! {
    #[ctor(unsafe)]
    fn record_closed_stdout() {
        WAS_CLOSED.store(rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err(), Ordering::Relaxed);
    }
}

/// Whether standard output was closed when the process started. Always `false` on systems other than Unix.
pub fn was_closed() -> bool {
    #[cfg(unix)]
    {
        WAS_CLOSED.load(Ordering::Relaxed)
    }
    #[cfg(not(unix))]
    false
}

/// Whether standard output is redirected to a regular file, as opposed to a terminal, a pipe or a device.
pub fn is_regular_file() -> bool {
    #[cfg(unix)]
    {
        file().and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.is_file())
    }
    #[cfg(not(unix))]
    false
}

/// Standard output for rows, on a terminal without control characters. On Unix without the buffer of
/// [`io::stdout`], which writes binary rows in two parts: up to the last byte that looks like the end of a
/// line, and the rest.
pub fn for_rows() -> Box<dyn Write + Send> {
    if io::stdout().is_terminal() {
        return Box::new(WithoutControls { to: io::stdout(), has_prefix: false });
    }
    #[cfg(unix)]
    if let Ok(file) = file() {
        return Box::new(file);
    }
    Box::new(io::stdout())
}

/// The first byte of the characters U+0080 to U+00BF in UTF-8.
const PREFIX: u8 = 0xc2;

/// Writes text with control characters, except for line breaks and tabs, as JSON escapes them: `\u001b`.
struct WithoutControls<W> {
    to: W,
    /// Whether the last byte was [`PREFIX`], which is not written yet.
    has_prefix: bool,
}

impl<W: Write> Write for WithoutControls<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shown = Vec::with_capacity(bytes.len());
        for byte in bytes {
            let follows_prefix = std::mem::take(&mut self.has_prefix);
            match byte {
                b'\n' | b'\r' | b'\t' => shown.push(*byte),
                0..0x20 | 0x7f => write!(shown, "\\u{byte:04x}")?,
                0x80..0xa0 if follows_prefix => write!(shown, "\\u{byte:04x}")?,
                &PREFIX => self.has_prefix = true,
                _ => {
                    shown.extend(follows_prefix.then_some(PREFIX));
                    shown.push(*byte);
                }
            }
        }
        self.to.write_all(&shown)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(unix)]
fn file() -> io::Result<File> {
    use std::os::fd::AsFd;
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::WithoutControls;

    #[test]
    fn controls_are_escaped_and_other_characters_are_not() {
        let text = "a\u{1b}]0;t\u{7}\u{9b}31m\u{7f}\u{80}\u{9f}é\u{a0}£日🦀\u{c2}\r\n\tz";
        let expected = "a\\u001b]0;t\\u0007\\u009b31m\\u007f\\u0080\\u009fé\u{a0}£日🦀\u{c2}\r\n\tz";
        // A character may be written in two parts.
        for size in [1, 2, 3, 5, text.len()] {
            let mut to = WithoutControls { to: Vec::new(), has_prefix: false };
            text.as_bytes().chunks(size).for_each(|part| to.write_all(part).unwrap());
            assert_eq!(String::from_utf8(to.to).unwrap(), expected, "{size} bytes at a time");
        }
    }
}
