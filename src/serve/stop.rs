//! SIGTERM and Ctrl-C: the first stops the server when admitted requests are answered, the second at once.

use super::app::{App, State};

/// Exit code of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// The signals that stop the process.
pub(super) struct Signals {
    /// SIGTERM and SIGINT. `None`: the system grants no handlers, and the process ends at the first signal.
    #[cfg(unix)]
    streams: Option<[tokio::signal::unix::Signal; 2]>,
}

impl Signals {
    /// Waits until the process is told to stop. While models are loaded, no request is admitted, and the
    /// process ends at once.
    pub(super) async fn requested(&mut self, app: &App) {
        let is_interrupt = self.next().await;
        if app.state() == State::Loading {
            std::process::exit(if is_interrupt { INTERRUPTED } else { 0 });
        }
    }

    /// Ends the process at the next signal.
    pub(super) async fn forced(&mut self) {
        self.next().await;
        std::process::exit(INTERRUPTED);
    }
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on, so that no signal is missed between two waits.
    pub(super) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let streams = [SignalKind::terminate(), SignalKind::interrupt()].map(|kind| signal(kind).ok());
        let [terminate, interrupt] = streams;
        Signals { streams: terminate.zip(interrupt).map(|(terminate, interrupt)| [terminate, interrupt]) }
    }

    /// Waits for a signal, and returns whether it is Ctrl-C.
    async fn next(&mut self) -> bool {
        let Some([terminate, interrupt]) = &mut self.streams else { return std::future::pending().await };
        tokio::select! {
            _ = terminate.recv() => false,
            _ = interrupt.recv() => true,
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> Self {
        Signals {}
    }

    /// Waits for Ctrl-C.
    async fn next(&mut self) -> bool {
        match tokio::signal::ctrl_c().await {
            Ok(()) => true,
            Err(_) => std::future::pending().await,
        }
    }
}
