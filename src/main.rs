//! The `sconce` command.

use std::io::Write;
use std::process::ExitCode;

use sconce::output::ClosedPipe;
use sconce::run::WrongUsage;

fn main() -> ExitCode {
    match sconce::cli::main() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever closes the pipe has read enough.
        Err(error) if error.is::<ClosedPipe>() => ExitCode::SUCCESS,
        Err(error) => {
            // Where even this cannot be said, the exit code says it.
            let _ = writeln!(std::io::stderr(), "sconce: error: {error:#}");
            ExitCode::from(if error.is::<WrongUsage>() { 2 } else { 1 })
        }
    }
}
