//! Standard output: whether it was open at start-up, and what it is connected to.

#[cfg(unix)]
use std::fs::File;
use std::io::{self, Write};
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether standard output was closed when the process started.
#[cfg(unix)]
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

// Runs before `main`: Rust's runtime opens /dev/null in place of a closed standard output, which cannot be told
// afterwards from an output that the user redirected to /dev/null.
//
// SAFETY: a constructor must not rely on anything that Rust's runtime sets up before `main`. This one calls
// fcntl(F_GETFD) on descriptor 1, which is valid for any descriptor number, open or not, and stores an atomic.
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

/// Standard output for rows. On Unix without the buffer of [`io::stdout`], which writes binary rows in two parts: up to the last byte that looks
/// like the end of a line, and the rest.
pub fn for_rows() -> Box<dyn Write + Send> {
    #[cfg(unix)]
    if let Ok(file) = file() {
        return Box::new(file);
    }
    Box::new(io::stdout())
}

#[cfg(unix)]
fn file() -> io::Result<File> {
    use std::os::fd::AsFd;
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}
