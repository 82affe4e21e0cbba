//! The `sconce` command.

use std::process::ExitCode;

use sconce::output::ClosedPipe;
use sconce::run::WrongUsage;

fn main() -> ExitCode {
    match sconce::cli::main() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever closes the pipe has read enough.
        Err(error) if error.is::<ClosedPipe>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sconce: error: {error:#}");
            ExitCode::from(if error.is::<WrongUsage>() { 2 } else { 1 })
        }
    }
}
