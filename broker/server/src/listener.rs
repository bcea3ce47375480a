//! Accepts connections within the limit, each a task of its own.
//!
//! All listeners share the limit. What a connection begins with, such as a TLS handshake, is its task's work: a
//! client that is slow holds up nobody.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use crate::{
    broker::Shared,
    config::Config,
    connection::{self, Accepted},
    error::Error,
    security::config::ListenerConfig,
};

/// Pause after a failed accept, which is mostly the process out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// At most one warning about connections turned away in this time.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// The open listeners of a broker, that of `listen` first.
#[derive(Debug)]
pub struct Listeners(Vec<(Arc<ListenerConfig>, TcpListener)>);

impl Listeners {
    /// Opens the configured listeners. Port 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Listen`]: an address is not this machine's or taken.
    pub async fn bind(config: &Config) -> Result<Self, Error> {
        let mut open = Vec::new();
        for listener in config.all_listeners() {
            let address = listener.listen.clone();
            let bound = TcpListener::bind(&address).await;
            let socket = bound.map_err(|source| Error::Listen { address, source })?;
            open.push((Arc::new(listener), socket));
        }
        Ok(Self(open))
    }

    /// The address of the first, that of `listen`.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.0.first().ok_or(io::ErrorKind::NotFound)?;
        first.1.local_addr()
    }

    /// Name and address of each.
    pub fn addresses(&self) -> Vec<(String, SocketAddr)> {
        let each = self.0.iter().filter_map(|(listener, socket)| {
            let address = socket.local_addr().ok()?;
            Some((listener.name.clone(), address))
        });
        each.collect()
    }
}

/// Accepts at all listeners until `stop`. The connections run on in `tasks` and end at `stop` after the request
/// in hand, or at once at `abort`.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    listeners: Listeners,
    tasks: &TaskTracker,
    stop: &CancellationToken,
    abort: &CancellationToken,
) {
    let accepting = TaskTracker::new();
    let places = Arc::new(Semaphore::new(shared.config.max_connections));
    for (listener, socket) in listeners.0 {
        let acceptor = Acceptor {
            shared: Arc::clone(shared),
            listener,
            places: Arc::clone(&places),
            tasks: tasks.clone(),
            stop: stop.clone(),
            abort: abort.clone(),
        };
        accepting.spawn(acceptor.run(socket));
    }
    accepting.close();
    accepting.wait().await;
}

/// One listener at work.
struct Acceptor {
    shared: Arc<Shared>,
    listener: Arc<ListenerConfig>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Acceptor {
    async fn run(self, socket: TcpListener) {
        let mut warned: Option<Instant> = None;
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = socket.accept() => accepted,
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
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                if warn_is_due(&mut warned) {
                    let limit = self.shared.config.max_connections;
                    warn!(limit, %peer, "connection turned away: max_connections are open");
                }
                continue;
            };
            self.serve(stream, peer, place);
        }
    }

    fn serve(&self, socket: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) {
        let accepted = Accepted {
            socket,
            peer,
            listener: Arc::clone(&self.listener),
        };
        let connection = connection::run(Arc::clone(&self.shared), accepted, self.stop.clone());
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
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
