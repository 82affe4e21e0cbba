//! The `sconce` command.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use sconce::error::UsageError;
use sconce::job::{EXIT_INTERRUPTED, ExitStatus, Interrupted};
use sconce::store::ClosedPipe;
use sconce::sys::terminal;

/// Chosen by measurement: `sconce embed hello` takes half the time that it takes with the allocator of glibc,
/// which asks the system for memory piece by piece in every thread but the first.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

// Runs before `main`: Rust's runtime allocates before, too.
//
// SAFETY: a constructor must not rely on anything that Rust's runtime sets up before `main`. This one stores
// a pointer.
#[cfg(unix)]
ctor::declarative::ctor! {
    #[ctor(unsafe)]
    fn report_refusals_before_main() {
        sconce::nn::report_refused_memory();
    }
}

fn main() -> ExitCode {
    match sconce::cli::main() {
        Ok(ExitStatus::Complete) => ExitCode::SUCCESS,
        Ok(ExitStatus::RecordsSkipped) => ExitCode::from(3),
        // Whoever closes the pipe has read enough.
        Err(error) if error.is::<ClosedPipe>() => ExitCode::SUCCESS,
        Err(error) => {
            // Where even this cannot be said, the exit code says it.
            terminal::eprint_message(&format!("error: {error:#}"));
            ExitCode::from(match () {
                () if error.is::<UsageError>() => 2,
                () if error.is::<Interrupted>() => EXIT_INTERRUPTED,
                () => 1,
            })
        }
    }
}
