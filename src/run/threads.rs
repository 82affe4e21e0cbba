//! Threads: all of them are started here, where a system that grants none (`ulimit -u`) gives an error in place of a panic.

use std::fmt::Display;
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, anyhow};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Gives the process its worker threads; to be called once, before anything else.
///
/// # Errors
/// If the system grants no threads.
pub fn use_threads(threads: Option<usize>) -> Result<()> {
    let threads = match threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(|error| refused(threads, error))
}

/// A pool of one thread: what is parallel inside of its work runs there, one after another.
///
/// # Errors
/// If the system grants no thread.
pub fn single() -> Result<ThreadPool> {
    ThreadPoolBuilder::new().num_threads(1).build().map_err(|error| refused(1, error))
}

/// Starts a thread.
///
/// # Errors
/// If the system grants none.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(|error| refused(1, error))
}

fn refused(threads: usize, error: impl Display) -> anyhow::Error {
    let what = if threads == 1 { "a thread".to_owned() } else { format!("{threads} threads") };
    anyhow!(
        "cannot start {what} ({error}); pass a smaller --threads, or raise the limit of processes (ulimit -u)"
    )
}
