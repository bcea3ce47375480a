//! SIGTERM and SIGINT: the first asks the work to stop, the second ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code after a second signal.
const IMPATIENT: i32 = 143;

/// A token that the first SIGTERM or SIGINT cancels.
///
/// # Errors
/// When signal handlers cannot be installed.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let asked = stop.clone();
    let listener = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        asked.cancel();
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        std::process::exit(IMPATIENT);
    };
    spawn_for_life(listener);
    Ok(stop)
}

#[expect(
    clippy::disallowed_methods,
    reason = "listens until the process ends; nothing waits for it"
)]
fn spawn_for_life(listener: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::task::spawn(listener));
}
