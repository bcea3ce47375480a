//! Accepts connections within the limit, each a task of its own.
//!
//! All listeners share the limits: of all connections, and of those from one address. What a connection begins
//! with, such as a TLS handshake, is its task's work: a client that is slow holds up nobody.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use prometheus::IntGauge;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use crate::{
    admin::Admin,
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

/// The open listeners of a broker, that of `listen` first; and the address of metrics and health, which answers from
/// now on until this is dropped.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<(Arc<ListenerConfig>, TcpListener)>,
    admin: Option<Admin>,
}

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
        let admin = match &config.admin_listen {
            Some(address) => Some(Admin::bind(address).await?),
            None => None,
        };
        Ok(Self {
            sockets: open,
            admin,
        })
    }

    /// The address of metrics and health, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.address)
    }

    /// Takes out who tells of metrics and health; it does so until it is dropped.
    pub(crate) fn take_admin(&mut self) -> Option<Admin> {
        self.admin.take()
    }

    /// The address of the first, that of `listen`.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.sockets.first().ok_or(io::ErrorKind::NotFound)?;
        first.1.local_addr()
    }

    /// Name and address of each.
    pub fn addresses(&self) -> Vec<(String, SocketAddr)> {
        let each = self.sockets.iter().filter_map(|(listener, socket)| {
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
    let places = Arc::new(Semaphore::new(shared.max_connections));
    let addresses = Arc::new(Addresses::new(shared.config.max_connections_per_address));
    for (listener, socket) in listeners.sockets {
        let acceptor = Acceptor {
            shared: Arc::clone(shared),
            listener,
            places: Arc::clone(&places),
            addresses: Arc::clone(&addresses),
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
    addresses: Arc<Addresses>,
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
            let metrics = &self.shared.metrics;
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                metrics.above_limit.inc();
                if warn_is_due(&mut warned) {
                    let limit = self.shared.max_connections;
                    warn!(limit, %peer, "connection turned away: max_connections are open");
                }
                continue;
            };
            let Some(of_address) = self.addresses.enter(peer.ip()) else {
                metrics.above_address_limit.inc();
                if warn_is_due(&mut warned) {
                    warn!(
                        limit = self.addresses.limit, %peer,
                        "connection turned away: max_connections_per_address are open from there"
                    );
                }
                continue;
            };
            metrics.accepted.inc();
            metrics.connections.inc();
            let place = Place {
                open: metrics.connections.clone(),
                _all: place,
                _of_address: of_address,
            };
            self.serve(stream, peer, place);
        }
    }

    fn serve(&self, socket: TcpStream, peer: SocketAddr, place: Place) {
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

/// A connection's place, given back when it ends.
#[derive(Debug)]
struct Place {
    open: IntGauge,
    _all: OwnedSemaphorePermit,
    _of_address: OfAddress,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// How many connections each address has open. Not more addresses than connections.
#[derive(Debug)]
struct Addresses {
    limit: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection's place among those of its address.
#[derive(Debug)]
struct OfAddress {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    fn new(limit: Option<usize>) -> Self {
        Self {
            limit: limit.unwrap_or(usize::MAX),
            open: Mutex::default(),
        }
    }

    /// A place for one more, if there is one. An IPv4 address is the same in IPv6's clothes.
    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<OfAddress> {
        let address = address.to_canonical();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(OfAddress {
            addresses: Arc::clone(self),
            address,
        })
    }
}

impl Drop for OfAddress {
    fn drop(&mut self) {
        let open = self.addresses.open.lock();
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_an_address_are_given_back_and_nothing_is_remembered() {
        let addresses = Arc::new(Addresses::new(Some(2)));
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let first = addresses.enter(one);
        let mapped = addresses.enter("::ffff:10.0.0.1".parse().unwrap());
        assert!(first.is_some() && mapped.is_some());
        assert!(addresses.enter(one).is_none());
        assert!(addresses.enter(other).is_some());
        drop(first);
        let again = addresses.enter(one);
        assert!(again.is_some());
        drop((mapped, again));
        assert!(addresses.open.lock().unwrap().is_empty());
    }
}
