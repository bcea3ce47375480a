//! A TCP proxy between a client and a server, with faults a test can switch on and off.
//!
//! ```text
//! client ──► listener ──► pump of requests ──► server
//!        ◄──────────────  pump of answers  ◄──
//! ```
//!
//! Faults apply to bytes, not to messages: what they do to a protocol's frames is the client's problem, as
//! in a real network.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

const BUFFER_BYTES: usize = 64 * 1024;

/// Pause between tries to bind again the port that was given up.
const REBIND_PAUSE: Duration = Duration::from_millis(20);

/// What happens to connections, old and new, from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing: bytes pass in both directions.
    #[default]
    None,
    /// Each connection is closed once so many bytes of answers have passed on it since the fault was set (0: at
    /// the first byte, which does not pass).
    CutAnswersAfter(u64),
    /// As [`Self::CutAnswersAfter`], for what the client sends: the rest does not reach the server.
    CutRequestsAfter(u64),
    /// Requests reach the server; its answers vanish, and the connections stay open.
    DropAnswers,
    /// Nothing passes, in either direction, and the connections stay open, as when a cable is pulled; when the
    /// fault ends, what was held back passes.
    Stall,
    /// Answers come so much later (each piece read from the server).
    DelayAnswers(Duration),
    /// Open connections are closed, and new ones refused by the kernel.
    Refuse,
}

/// A proxy in front of one server. Dropping it closes its connections.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    counts: Arc<Counts>,
    listener: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    requests: AtomicU64,
    answers: AtomicU64,
}

impl TcpProxy {
    /// Starts one on a free port of the loopback address, for the server at `upstream` (`host:port`).
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(upstream: &str) -> Result<Self> {
        let port = crate::free_ports(1)?;
        Self::start_on(port.first().copied().unwrap_or(0), upstream).await
    }

    /// As [`Self::start`], on a given port, such as that of [`crate::Endpoint`].
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub async fn start_on(port: u16, upstream: &str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let (fault, faults) = watch::channel(Fault::None);
        let counts = Arc::new(Counts::default());
        let serving = serve(
            listener,
            address,
            upstream.to_owned(),
            faults,
            Arc::clone(&counts),
        );
        Ok(Self {
            address,
            fault,
            counts,
            listener: spawn(serving),
        })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Switches to another fault, for all connections.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// Bytes passed on to the server so far.
    pub fn request_bytes(&self) -> u64 {
        self.counts.requests.load(Ordering::Relaxed)
    }

    /// Bytes that came from the server so far, whether or not they were passed on.
    pub fn answer_bytes(&self) -> u64 {
        self.counts.answers.load(Ordering::Relaxed)
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// The listener's task ends with the proxy, and its set of connections with it.
#[expect(
    clippy::disallowed_methods,
    reason = "the task is aborted when its proxy is dropped"
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    upstream: String,
    mut faults: watch::Receiver<Fault>,
    counts: Arc<Counts>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        if *faults.borrow_and_update() == Fault::Refuse {
            listener = None;
            connections.shutdown().await;
            if faults.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Some(open) = &listener else {
            listener = rebind(address).await;
            continue;
        };
        tokio::select! {
            accepted = open.accept() => {
                if let Ok((client, _)) = accepted {
                    counts.connections.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(connect(
                        client,
                        upstream.clone(),
                        faults.clone(),
                        Arc::clone(&counts),
                    ));
                }
            }
            changed = faults.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            // Forgets connections that have ended.
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn rebind(address: SocketAddr) -> Option<TcpListener> {
    let listener = TcpListener::bind(address).await.ok();
    if listener.is_none() {
        tokio::time::sleep(REBIND_PAUSE).await;
    }
    listener
}

async fn connect(
    client: TcpStream,
    upstream: String,
    faults: watch::Receiver<Fault>,
    counts: Arc<Counts>,
) {
    // Without a server the client's connection is closed, which is all a proxy can tell it.
    let Ok(server) = TcpStream::connect(&upstream).await else {
        return;
    };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = Pump {
        direction: Direction::Requests,
        faults: faults.clone(),
        count: &counts.requests,
    };
    let answers = Pump {
        direction: Direction::Answers,
        faults,
        count: &counts.answers,
    };
    // An end that has sent all may still listen (HDFS clients do); a fault or an error closes both.
    let requests = requests.run(from_client, to_server);
    let answers = answers.run(from_server, to_client);
    tokio::pin!(requests, answers);
    tokio::select! {
        end = &mut requests => if let Ok(End::AllSent) = end { answers.await.ok(); },
        end = &mut answers => if let Ok(End::AllSent) = end { requests.await.ok(); },
    }
}

/// How one direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The sender closed its side, which the receiver was told.
    AllSent,
    /// A fault cut the connection.
    Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Answers,
}

struct Pump<'a> {
    direction: Direction,
    faults: watch::Receiver<Fault>,
    count: &'a AtomicU64,
}

impl Pump<'_> {
    /// Ends when the sender does, when a fault cuts the connection, or with an error.
    async fn run(
        mut self,
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
    ) -> io::Result<End> {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        let mut fault = Fault::None;
        let mut passed_under_fault = 0;
        loop {
            buffer.clear();
            if from.read_buf(&mut buffer).await? == 0 {
                to.shutdown().await?;
                return Ok(End::AllSent);
            }
            if self.direction == Direction::Answers {
                self.count_bytes(buffer.len());
            }
            // Stalled bytes wait here, and the peer's behind them in the socket.
            let stalled = |fault: &Fault| *fault != Fault::Stall;
            let now = self
                .faults
                .wait_for(stalled)
                .await
                .map_or(Fault::None, |fault| *fault);
            if now != fault {
                fault = now;
                passed_under_fault = 0;
            }
            let allowed = match (fault, self.direction) {
                (Fault::CutAnswersAfter(bytes), Direction::Answers)
                | (Fault::CutRequestsAfter(bytes), Direction::Requests) => {
                    Some(bytes - passed_under_fault)
                }
                (Fault::DropAnswers, Direction::Answers) => continue,
                (Fault::DelayAnswers(delay), Direction::Answers) => {
                    tokio::time::sleep(delay).await;
                    None
                }
                _ => None,
            };
            let length = allowed.map_or(buffer.len(), |bytes| {
                usize::try_from(bytes)
                    .unwrap_or(usize::MAX)
                    .min(buffer.len())
            });
            to.write_all(buffer.get(..length).unwrap_or_default())
                .await?;
            passed_under_fault += length as u64;
            if self.direction == Direction::Requests {
                self.count_bytes(length);
            }
            if allowed.is_some_and(|bytes| bytes <= length as u64) {
                to.flush().await?;
                return Ok(End::Cut);
            }
        }
    }

    fn count_bytes(&self, length: usize) {
        self.count.fetch_add(length as u64, Ordering::Relaxed);
    }
}
