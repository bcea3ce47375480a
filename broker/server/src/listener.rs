//! Accepts connections within the limit, each a task of its own.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use crate::{broker::Shared, connection};

/// Pause after a failed accept, which is mostly the process out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// At most one warning about connections turned away in this time.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Accepts until `stop`. The connections run on in `tasks` and end at `stop` after the request in hand, or at
/// once at `abort`.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    listener: TcpListener,
    tasks: &TaskTracker,
    stop: &CancellationToken,
    abort: &CancellationToken,
) {
    let places = Arc::new(Semaphore::new(shared.config.max_connections));
    let mut warned: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if warn_is_due(&mut warned) {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot accept connections"
                    );
                }
                if !concerns_one_connection(&error) {
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            if warn_is_due(&mut warned) {
                let limit = shared.config.max_connections;
                warn!(limit, %peer, "connection turned away: max_connections are open");
            }
            continue;
        };
        let connection = connection::run(Arc::clone(shared), stream, peer, stop.clone());
        let abort = abort.clone();
        tasks.spawn(async move {
            let ended = abort.run_until_cancelled(connection).await;
            match ended {
                Some(Err(reason)) => debug!(%peer, %reason, "connection closed"),
                Some(Ok(())) | None => debug!(%peer, "connection closed"),
            }
            drop(place);
        });
    }
}

fn warn_is_due(warned: &mut Option<Instant>) -> bool {
    let due = warned.is_none_or(|last| last.elapsed() >= WARN_INTERVAL);
    if due {
        *warned = Some(Instant::now());
    }
    due
}

/// Whether the error is about a client that left in the queue, not about this process.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
