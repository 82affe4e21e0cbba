//! What workers run, and which of them may run more.

use std::time::Duration;

/// What a worker runs.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) since: Duration,
    pub(super) tokens: usize,
    pub(super) is_long: bool,
    pub(super) is_shared: bool,
    /// Whether it shares the cores of long texts.
    pub(super) is_beside_long: bool,
}

/// What each worker runs.
pub(super) struct Workers {
    /// The last ones are those for short texts.
    running: Vec<Option<Running>>,
    /// The number of workers with a core each.
    cores: usize,
}

impl Workers {
    /// Idle workers: those with a core each, and those for short texts.
    pub(super) fn new(cores: usize, short_workers: usize) -> Self {
        Workers { running: vec![None; cores + short_workers], cores }
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn start(&mut self, worker: usize, running: Running) {
        self.running[worker] = Some(running);
    }

    pub(super) fn end(&mut self, worker: usize) -> Option<Running> {
        self.running[worker].take()
    }

    pub(super) fn are_idle(&self) -> bool {
        self.running.iter().all(Option::is_none)
    }

    pub(super) fn is_idle(&self, worker: usize) -> bool {
        self.running[worker].is_none()
    }

    /// The number of idle workers that have a core.
    pub(super) fn idle_cores(&self) -> usize {
        self.running[..self.cores].iter().filter(|running| running.is_none()).count()
    }

    /// Whether a worker has a core while it is idle.
    pub(super) fn has_core(&self, worker: usize) -> bool {
        worker < self.cores && self.shared_run().is_none()
    }

    /// Whether one more worker may share the cores of long texts: one for each of these cores, if none is
    /// idle.
    pub(super) fn may_run_beside_long(&self) -> bool {
        let long_cores = match self.shared_run() {
            Some(shared) if shared.is_long => self.cores,
            None if self.idle_cores() == 0 => self.count(|running| running.is_long),
            _ => 0,
        };
        self.count(|running| running.is_beside_long) < long_cores
    }

    fn shared_run(&self) -> Option<&Running> {
        self.running.iter().flatten().find(|running| running.is_shared)
    }

    fn count(&self, is_counted: impl Fn(&Running) -> bool) -> usize {
        self.running.iter().flatten().filter(|running| is_counted(running)).count()
    }
}
