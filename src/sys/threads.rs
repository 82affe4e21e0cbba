//! Starting threads. `std::thread::spawn` panics where the system refuses a thread (`ulimit -u`); these
//! functions return an error.

use std::fmt::Display;
use std::panic::{self, AssertUnwindSafe};
use std::thread::{Builder, JoinHandle};

use anyhow::{Error, Result, anyhow};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Builds rayon's global pool with `threads` threads, by default one per available core. Call it once, before
/// any parallel work.
pub fn build_global_pool(threads: Option<usize>) -> Result<()> {
    let (pool, threads) = compute_threads(threads);
    pool.build_global().map_err(|error| refused(threads, error))
}

/// A pool like the global one, for a program that has a global pool of its own.
pub fn compute_pool(threads: Option<usize>) -> Result<ThreadPool> {
    let (pool, threads) = compute_threads(threads);
    pool.build().map_err(|error| refused(threads, error))
}

/// A pool of `threads` threads, by default one per available core, and their number.
fn compute_threads(threads: Option<usize>) -> (ThreadPoolBuilder, usize) {
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    (pool(threads, |index| format!("compute-{index}")), threads)
}

/// A pool of `threads` threads.
pub fn thread_pool(threads: usize, name: &'static str) -> Result<ThreadPool> {
    pool(threads, move |index| format!("{name}-{index}")).build().map_err(|error| refused(threads, error))
}

/// A pool of one thread. Parallel operations called inside of it run sequentially on that thread.
pub fn single_thread_pool(name: String) -> Result<ThreadPool> {
    pool(1, move |_| name.clone()).build().map_err(|error| refused(1, error))
}

fn pool(threads: usize, name: impl FnMut(usize) -> String + 'static) -> ThreadPoolBuilder {
    let cpus = cpus::of_this_thread();
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(name);
    pool.start_handler(move |index| cpus::keep_apart(&cpus, index, threads))
}

/// Starts a named thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(|error| refused(1, error))
}

/// Starts a named thread with so many bytes of stack, of which only what it uses is memory.
pub fn spawn_with_stack<T: Send + 'static>(
    name: impl Into<String>,
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = Builder::new().name(name.into()).stack_size(stack_bytes);
    thread.spawn(work).map_err(|error| refused(1, error))
}

/// The error for a channel whose other end is closed: the thread there has panicked, and the panic hook has
/// printed why.
pub fn thread_panicked<E>(_: E) -> Error {
    anyhow!("a thread has panicked; please report this as a bug")
}

/// Calls `work` and turns a panic into an error. Without this, threads that wait for the rest of a queue
/// would wait forever.
pub fn panic_to_error<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(thread_panicked(())))
}

fn refused(threads: usize, error: impl Display) -> anyhow::Error {
    let threads = if threads == 1 { "a thread".to_owned() } else { format!("{threads} threads") };
    anyhow!(
        "cannot start {threads} ({error}); pass a smaller --threads, or raise the limits of processes and memory (ulimit -u, ulimit -v)"
    )
}

/// The CPUs that threads may run on. The threads of a pool that share the work on one text are needed at the
/// same time. Some kernels wake a thread on the CPU that it ran on last, even if the thread that wakes it
/// runs there now and another CPU is idle. Both would run one after the other until the scheduler balances
/// its queues, which takes longer than encoding a text. Hence no two threads of a pool may run on the same
/// CPU, if there are enough. With at most half as many threads as CPUs, each still has a choice, so that
/// processes side by side get out of each other's way.
#[cfg(target_os = "linux")]
mod cpus {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The CPUs that this thread may run on, and those that it starts; none if the system does not tell.
    pub(super) fn of_this_thread() -> Vec<usize> {
        let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    /// Restricts this thread, the one of this index among several, to every `threads`-th of the CPUs. Best
    /// effort: without a CPU of its own, or where the system refuses, it may run on all that its parent may
    /// run on.
    pub(super) fn keep_apart(cpus: &[usize], index: usize, threads: usize) {
        if threads > 1 && threads <= cpus.len() {
            let mut set = CpuSet::new();
            cpus.iter().skip(index).step_by(threads).for_each(|cpu| set.set(*cpu));
            let _ = sched_setaffinity(None, &set);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod cpus {
    pub(super) fn of_this_thread() -> Vec<usize> {
        Vec::new()
    }

    pub(super) fn keep_apart(_cpus: &[usize], _index: usize, _threads: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let error = panic_to_error::<()>(|| panic!("on purpose")).unwrap_err().to_string();
        assert_eq!(error, thread_panicked(()).to_string());
        assert_eq!(panic_to_error(|| Ok(1)).unwrap(), 1);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod cpu_tests {
    use super::cpus::of_this_thread;
    use super::*;

    #[test]
    fn the_threads_of_a_pool_share_no_cpu_if_there_are_enough() {
        let all = of_this_thread();
        assert!(!all.is_empty(), "the system tells the CPUs of a thread");
        for threads in [1, 2, all.len().div_ceil(2), all.len(), all.len() + 1] {
            let pool = pool(threads, |index| format!("test-{index}")).build().expect("threads start");
            let cpus = pool.broadcast(|_| of_this_thread());
            assert!(cpus.iter().all(|cpus| !cpus.is_empty()), "{threads} threads: {cpus:?}");
            let mut joined = cpus.concat();
            joined.sort_unstable();
            let mut expected = if threads <= all.len() { all.clone() } else { all.repeat(threads) };
            expected.sort_unstable();
            assert_eq!(joined, expected, "{threads} threads: {cpus:?}");
        }
    }
}
