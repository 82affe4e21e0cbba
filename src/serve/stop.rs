//! SIGTERM, Ctrl-C and, if it is wanted, the end of standard input: the first stops the server when admitted
//! requests are answered, the second at once.

use std::future::pending;
use std::io;

use anyhow::Result;
use tokio::sync::oneshot::{self, Receiver};

use super::app::{App, State};
use crate::sys::threads::spawn;

/// Exit code of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// What stops the process.
pub(super) struct Signals {
    /// SIGTERM and SIGINT. `None`: the system grants no handlers, and the process ends at the first signal.
    #[cfg(unix)]
    streams: Option<[tokio::signal::unix::Signal; 2]>,
    /// The end of standard input, until it has come. `None`: it does not count.
    input: Option<Receiver<()>>,
}

impl Signals {
    /// Listens from now on, so that no signal is missed between two waits.
    pub(super) fn listen(with_input: bool) -> Result<Self> {
        let input = if with_input { Some(end_of_input()?) } else { None };
        Ok(Signals {
            #[cfg(unix)]
            streams: unix_signals(),
            input,
        })
    }

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

    /// Waits for a signal or the end of standard input, and returns whether it is Ctrl-C.
    async fn next(&mut self) -> bool {
        let Signals { input, .. } = self;
        let input = async {
            match input {
                Some(ended) => drop(ended.await),
                None => pending().await,
            }
        };
        #[cfg(unix)]
        let is_interrupt = signalled(&mut self.streams);
        #[cfg(not(unix))]
        let is_interrupt = signalled();
        tokio::select! {
            is_interrupt = is_interrupt => is_interrupt,
            () = input => {
                self.input = None;
                false
            }
        }
    }
}

/// Reads standard input to its end on a thread of its own, which a stop does not wait for.
fn end_of_input() -> Result<Receiver<()>> {
    let (send, receive) = oneshot::channel();
    spawn("stdin", move || {
        // A read that fails is the end, too.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        drop(send);
    })?;
    Ok(receive)
}

#[cfg(unix)]
fn unix_signals() -> Option<[tokio::signal::unix::Signal; 2]> {
    use tokio::signal::unix::{SignalKind, signal};
    let streams = [SignalKind::terminate(), SignalKind::interrupt()].map(|kind| signal(kind).ok());
    let [terminate, interrupt] = streams;
    terminate.zip(interrupt).map(|(terminate, interrupt)| [terminate, interrupt])
}

/// Waits for a signal, and returns whether it is Ctrl-C.
#[cfg(unix)]
async fn signalled(streams: &mut Option<[tokio::signal::unix::Signal; 2]>) -> bool {
    let Some([terminate, interrupt]) = streams else { return pending().await };
    tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => true,
    }
}

/// Waits for Ctrl-C.
#[cfg(not(unix))]
async fn signalled() -> bool {
    match tokio::signal::ctrl_c().await {
        Ok(()) => true,
        Err(_) => pending().await,
    }
}
