//! Starting threads. `std::thread::spawn` panics where the system refuses a thread (`ulimit -u`); these functions return an error.

use std::fmt::Display;
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, anyhow};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Builds rayon's global pool with `threads` threads, by default one per available core. Call it once, before any parallel work.
///
/// # Errors
/// If the system refuses to start the threads.
pub fn build_global_pool(threads: Option<usize>) -> Result<()> {
    let threads = match threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("compute-{index}"));
    pool.build_global().map_err(|error| refused(threads, error))
}

/// A pool of one thread. Parallel operations called inside of it run sequentially on that thread.
///
/// # Errors
/// If the system refuses to start the thread.
pub fn single_thread_pool(name: String) -> Result<ThreadPool> {
    let pool = ThreadPoolBuilder::new().num_threads(1).thread_name(move |_| name.clone());
    pool.build().map_err(|error| refused(1, error))
}

/// Starts a named thread.
///
/// # Errors
/// If the system refuses to start it.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(|error| refused(1, error))
}

fn refused(threads: usize, error: impl Display) -> anyhow::Error {
    let threads = if threads == 1 { "a thread".to_owned() } else { format!("{threads} threads") };
    anyhow!(
        "cannot start {threads} ({error}); pass a smaller --threads, or raise the process limit (ulimit -u)"
    )
}
