//! Standard output.

use std::io::{self, Write};
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use super::Target;
use super::fault::explain;

/// Whether standard output was closed when the process began.
#[cfg(unix)]
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

// Before `main`, Rust's runtime opens /dev/null in the place of a closed standard output; after that it cannot be told from one
// that whoever started the process has redirected there.
//
// It allocates nothing: memory that is taken before `main` keeps the allocator from huge pages afterwards, which doubles the time of
// `sconce embed hello`.
//
// SAFETY: the function needs nothing that the runtime sets up: it asks the system for the flags of descriptor 1 and stores an
// atomic value.
#[cfg(unix)]
ctor::declarative::ctor! {
    #[ctor(unsafe)]
    fn look_at_stdout() {
        WAS_CLOSED.store(rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err(), Ordering::Relaxed);
    }
}

/// Refuses a standard output that is closed: what is written there would be lost.
///
/// # Errors
/// If it was closed when the process began.
pub fn check_stdout() -> Result<()> {
    #[cfg(unix)]
    if WAS_CLOSED.load(Ordering::Relaxed) {
        anyhow::bail!("cannot write standard output: it is closed; redirect it to a file or a pipe");
    }
    Ok(())
}

/// Whether standard output leads to a file, and not to a terminal, a pipe or a device.
pub fn stdout_is_file() -> bool {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let file = io::stdout().as_fd().try_clone_to_owned().map(std::fs::File::from);
        file.and_then(|file| file.metadata()).is_ok_and(|there| there.is_file())
    }
    #[cfg(not(unix))]
    false
}

/// Writes a page of text to standard output.
///
/// # Errors
/// If it is closed or cannot be written; [`super::ClosedPipe`] if its reader has gone.
pub fn print(page: &[u8]) -> Result<()> {
    check_stdout()?;
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(page)
        .and_then(|()| stdout.flush())
        .map_err(|error| explain(&Target::Stdout, false, error))
}
