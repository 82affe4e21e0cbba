//! SIGTERM and Ctrl-C: the first stops the server when admitted requests are answered, the second at once.

use super::app::{App, State};

/// Exit code of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Waits until the process is told to stop. While models are loaded, no request is admitted, and the process ends at once.
pub(super) async fn requested(app: &App) {
    let is_interrupt = signal().await;
    if app.state() == State::Loading {
        std::process::exit(if is_interrupt { INTERRUPTED } else { 0 });
    }
}

/// Ends the process at the next signal.
pub(super) async fn forced() {
    signal().await;
    std::process::exit(INTERRUPTED);
}

/// Waits for a signal, and returns whether it is Ctrl-C.
#[cfg(unix)]
async fn signal() -> bool {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => true,
    }
}

#[cfg(not(unix))]
async fn signal() -> bool {
    match tokio::signal::ctrl_c().await {
        Ok(()) => true,
        Err(_) => std::future::pending().await,
    }
}
