//! The limit of file sizes (`ulimit -f`).

use anyhow::Result;

/// Makes a write beyond the limit an error, [`FileTooLarge`](std::io::ErrorKind::FileTooLarge): by default
/// the signal SIGXFSZ ends the process without a message.
pub fn report_size_limits() -> Result<()> {
    #[cfg(unix)]
    {
        use std::sync::Arc;
        use std::sync::atomic::AtomicBool;
        // Nobody reads the flag: a signal that is handled does not end the process.
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}
