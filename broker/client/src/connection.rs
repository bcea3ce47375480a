//! One pipelined connection.
//!
//! ```text
//!  call ─► encode ─► frames (bounded) ─► write loop ─► socket
//!    │       └► waiting (in order) ◄──────────────── read loop ◄─ socket
//!    └──────────◄ oneshot ◄────┘
//! ```
//!
//! A broker answers in the order of the requests, so the calls that wait are a queue, and an answer
//! that is not the front's is a framing error. After the first such error, after a close, or after
//! a call that got no answer in time, the connection is poisoned: all who wait fail, later calls
//! fail at once, and the pool opens another.
//!
//! Whole frames are handed to the write loop, so a call that is dropped leaves no half frame; its
//! place in the queue stays until its answer has come and been thrown away.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker_protocol::ByteString;
use broker_protocol::frame::{
    self, MIN_RESPONSE_LEN, PREFIX_LEN, decode_response, encode_request, parse_length,
};
use broker_protocol::messages::Request;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::config::split_address;
use crate::error::{Error, Result};
use crate::handshake;
use crate::sasl::Login;
use crate::tasks::Tasks;
use crate::tls::{self, TlsFault};
use crate::versions::Versions;

/// Frames that wait for the write loop; beyond it calls wait.
const FRAMES_QUEUED: usize = 32;

/// How a TLS record begins that carries a handshake or an alert: no Kafka frame is as long as this reads.
const TLS_RECORD: [[u8; 2]; 2] = [[0x15, 0x03], [0x16, 0x03]];

/// What a connection needs to know of the client's settings.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) client_id: ByteString,
    pub(crate) tls: Option<TlsConnector>,
    pub(crate) login: Option<Arc<Login>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_response_bytes: usize,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Settings");
        debug.field("client_id", &self.client_id);
        debug.field("tls", &self.tls.is_some());
        debug.field("login", &self.login);
        debug.finish_non_exhaustive()
    }
}

/// A framing error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameFault {
    #[error("an answer carries correlation id {found}, the oldest request waiting has {expected}")]
    Correlation { expected: i32, found: i32 },
    #[error("an answer came though no request was waiting")]
    Unexpected,
    #[error("an answer lacks what was asked for: {0}")]
    Incomplete(&'static str),
}

impl FrameFault {
    pub(crate) fn at(self, address: &Arc<str>) -> Error {
        Error::Protocol {
            address: Arc::clone(address),
            source: Arc::new(self),
        }
    }
}

#[derive(Debug)]
struct Waiting {
    correlation_id: i32,
    operation: &'static str,
    deadline: Instant,
    limit: Duration,
    answer: oneshot::Sender<Result<Bytes>>,
}

/// A request that is on its way.
#[derive(Debug)]
struct Sent {
    answer: oneshot::Receiver<Result<Bytes>>,
    operation: &'static str,
    deadline: Instant,
    limit: Duration,
}

#[derive(Debug)]
enum State {
    Open(VecDeque<Waiting>),
    Poisoned(Error),
}

#[derive(Debug)]
struct Shared {
    address: Arc<str>,
    state: Mutex<State>,
    /// The handshake is over, authentication included.
    open: AtomicBool,
    /// Something was answered after the handshake: the broker has let us in.
    welcome: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is one assignment or one queue operation: it is never half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails all who wait. The first error stays.
    fn poison(&self, error: &Error) {
        let mut state = self.state();
        if let State::Open(waiting) = &mut *state {
            let waiting = std::mem::take(waiting);
            *state = State::Poisoned(error.clone());
            drop(state);
            for call in waiting {
                // A call that was dropped no longer listens.
                let _dropped = call.answer.send(Err(error.clone()));
            }
        }
    }

    /// Fails the oldest call alone: its answer cannot be read.
    fn fail_oldest(&self, error: Error) {
        let oldest = match &mut *self.state() {
            State::Open(waiting) => waiting.pop_front(),
            State::Poisoned(_) => None,
        };
        if let Some(call) = oldest {
            let _dropped = call.answer.send(Err(error));
        }
    }

    fn failure(&self) -> Option<Error> {
        match &*self.state() {
            State::Open(_) => None,
            State::Poisoned(error) => Some(error.clone()),
        }
    }

    fn disconnected(&self, source: Option<io::Error>) -> Error {
        let address = Arc::clone(&self.address);
        let fault = source.as_ref().and_then(TlsFault::of);
        let source = source.map(Arc::new);
        match fault {
            Some(fault) => Error::Tls {
                address,
                fault,
                source,
            },
            None => Error::Disconnected { address, source },
        }
    }

    /// The broker closed between two answers.
    fn closed_by_peer(&self, source: io::Error) -> Error {
        if self.welcome.load(Ordering::Relaxed) || TlsFault::of(&source).is_some() {
            return self.disconnected(Some(source));
        }
        Error::Unwelcome {
            address: Arc::clone(&self.address),
            source: Some(Arc::new(source)),
        }
    }

    /// Hands an answer to the oldest call.
    fn deliver(&self, frame: Bytes) -> Result<()> {
        let Some(id) = frame.first_chunk::<4>().map(|id| i32::from_be_bytes(*id)) else {
            return Err(FrameFault::Unexpected.at(&self.address));
        };
        let call = {
            let mut state = self.state();
            let State::Open(waiting) = &mut *state else {
                return Ok(());
            };
            let Some(oldest) = waiting.front() else {
                return Err(FrameFault::Unexpected.at(&self.address));
            };
            let expected = oldest.correlation_id;
            if expected != id {
                return Err(FrameFault::Correlation {
                    expected,
                    found: id,
                }
                .at(&self.address));
            }
            waiting.pop_front()
        };
        if let Some(call) = call {
            if self.open.load(Ordering::Relaxed) {
                self.welcome.store(true, Ordering::Relaxed);
            }
            let _dropped = call.answer.send(Ok(frame));
        }
        Ok(())
    }
}

/// One connection to one broker. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    frames: mpsc::Sender<Bytes>,
    next_correlation_id: AtomicI32,
    client_id: ByteString,
    versions: Versions,
    closed: CancellationToken,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl Connection {
    /// Opens a connection, asks for the broker's versions and authenticates. Cancel safe.
    pub(crate) async fn open(
        address: Arc<str>,
        settings: &Settings,
        tasks: &Tasks,
    ) -> Result<Self> {
        let unreachable = |source: io::Error| Error::Unreachable {
            address: Arc::clone(&address),
            source: Arc::new(source),
        };
        let deadline = Instant::now() + settings.connect_timeout;
        let (host, port) = split_address(&address).ok_or_else(|| {
            unreachable(io::Error::new(io::ErrorKind::InvalidInput, "not host:port"))
        })?;
        let stream = tokio::time::timeout_at(deadline, TcpStream::connect((host, port)))
            .await
            .map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?
            .map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let stream = match &settings.tls {
            None => Stream::Plain(stream),
            Some(connector) => {
                let secured = tls::handshake(connector, &address, host, stream);
                let secured = tokio::time::timeout_at(deadline, secured).await;
                let secured = secured.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?;
                Stream::Tls(Box::new(secured?))
            }
        };
        let mut connection = Self::start(stream, Arc::clone(&address), settings, tasks);
        let left = deadline.saturating_duration_since(Instant::now());
        connection.versions = handshake::versions(&connection, left).await?;
        if let Some(login) = &settings.login {
            login.authenticate(&connection, deadline).await?;
        }
        connection.shared.open.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    fn start(stream: Stream, address: Arc<str>, settings: &Settings, tasks: &Tasks) -> Self {
        let (frames, to_write) = mpsc::channel(FRAMES_QUEUED);
        let closed = tasks.child_token();
        let state = Mutex::new(State::Open(VecDeque::new()));
        let shared = Arc::new(Shared {
            address,
            state,
            open: AtomicBool::new(false),
            welcome: AtomicBool::new(false),
        });
        let task = Task {
            shared: Arc::clone(&shared),
            closed: closed.clone(),
            max_response_bytes: settings.max_response_bytes,
        };
        tasks.spawn(task.run(stream, to_write));
        Self {
            shared,
            frames,
            next_correlation_id: AtomicI32::new(0),
            client_id: settings.client_id.clone(),
            versions: Versions::default(),
            closed,
        }
    }

    pub(crate) fn address(&self) -> &Arc<str> {
        &self.shared.address
    }

    pub(crate) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Whether calls can still succeed.
    pub(crate) fn is_healthy(&self) -> bool {
        self.shared.failure().is_none()
    }

    /// Whether nothing is waiting for an answer, not even a dropped call.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(&*self.shared.state(), State::Open(waiting) if waiting.is_empty())
    }

    /// Sends a request in the highest common version within `wanted` and waits for its answer.
    ///
    /// Cancel safe: a dropped call is either not sent or sent whole, and its answer is thrown away.
    /// A call without answer within `limit` poisons the connection.
    pub(crate) async fn call<R: Request>(
        &self,
        wanted: &RangeInclusive<i16>,
        limit: Duration,
        request: impl FnOnce(i16) -> R,
    ) -> Result<R::Response> {
        let version = self.versions.choose::<R>(wanted)?;
        let answer = self.exchange(version, limit, &request(version)).await?;
        self.decode::<R>(version, answer)
            .inspect_err(|error| self.close(error))
    }

    /// Reads an answer.
    pub(crate) fn decode<R: Request>(&self, version: i16, answer: Bytes) -> Result<R::Response> {
        decode_response(answer, version)
            .map(|(_, response)| response)
            .map_err(|fault| self.protocol_error(fault))
    }

    /// Sends a request now, before it returns, and gives a future of its answer: several sent one
    /// after the other arrive in that order. As cancel safe as [`call`](Self::call).
    pub(crate) async fn send<R: Request>(
        self: Arc<Self>,
        wanted: &RangeInclusive<i16>,
        limit: Duration,
        request: impl FnOnce(i16) -> R,
    ) -> Result<impl Future<Output = Result<R::Response>> + Send + 'static> {
        let version = self.versions.choose::<R>(wanted)?;
        let sent = self.submit(version, limit, &request(version)).await?;
        Ok(async move {
            let answer = self.answer(sent).await?;
            self.decode::<R>(version, answer)
                .inspect_err(|error| self.close(error))
        })
    }

    /// Sends a request in a given version; returns the answer's frame.
    pub(crate) async fn exchange<R: Request>(
        &self,
        version: i16,
        limit: Duration,
        request: &R,
    ) -> Result<Bytes> {
        let sent = self.submit(version, limit, request).await?;
        self.answer(sent).await
    }

    async fn submit<R: Request>(&self, version: i16, limit: Duration, request: &R) -> Result<Sent> {
        let correlation_id = self.next_correlation_id.fetch_add(1, Ordering::Relaxed);
        let frame = self.encode(version, correlation_id, request)?;
        let deadline = Instant::now() + limit;
        // Room in the channel first: then queue and socket have the same order, and nothing between
        // the two can be cancelled.
        match tokio::time::timeout_at(deadline, self.frames.reserve()).await {
            Ok(Ok(room)) => {
                let (sender, answer) = oneshot::channel();
                let operation = R::NAME;
                let waiting = Waiting {
                    correlation_id,
                    operation,
                    deadline,
                    limit,
                    answer: sender,
                };
                self.enqueue(room, frame, waiting)?;
                Ok(Sent {
                    answer,
                    operation,
                    deadline,
                    limit,
                })
            }
            Ok(Err(_)) => Err(self.gone()),
            Err(_) => Err(self.overdue(R::NAME, limit)),
        }
    }

    async fn answer(&self, sent: Sent) -> Result<Bytes> {
        match tokio::time::timeout_at(sent.deadline, sent.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(self.gone()),
            Err(_) => Err(self.overdue(sent.operation, sent.limit)),
        }
    }

    fn gone(&self) -> Error {
        self.shared
            .failure()
            .unwrap_or_else(|| self.shared.disconnected(None))
    }

    fn overdue(&self, operation: &'static str, after: Duration) -> Error {
        let address = Arc::clone(self.address());
        let error = Error::NoAnswer {
            address,
            operation,
            after,
        };
        self.close(&error);
        error
    }

    fn enqueue(&self, room: mpsc::Permit<'_, Bytes>, frame: Bytes, call: Waiting) -> Result<()> {
        let mut state = self.shared.state();
        let waiting = match &mut *state {
            State::Open(waiting) => waiting,
            State::Poisoned(error) => return Err(error.clone()),
        };
        // A dropped call has no timer of its own; whoever comes next notices that it hangs.
        if let Some(oldest) = waiting.front()
            && oldest.deadline < Instant::now()
        {
            let (operation, limit) = (oldest.operation, oldest.limit);
            drop(state);
            return Err(self.overdue(operation, limit));
        }
        waiting.push_back(call);
        room.send(frame);
        Ok(())
    }

    fn encode<R: Request>(&self, version: i16, correlation_id: i32, request: &R) -> Result<Bytes> {
        let mut frame = BytesMut::with_capacity(256);
        encode_request(
            &mut frame,
            request,
            version,
            correlation_id,
            Some(&self.client_id),
        )
        .map_err(|fault| self.protocol_error(fault))?;
        Ok(frame.freeze())
    }

    fn protocol_error(&self, fault: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Protocol {
            address: Arc::clone(self.address()),
            source: Arc::new(fault),
        }
    }

    fn close(&self, error: &Error) {
        self.shared.poison(error);
        self.closed.cancel();
    }
}

/// The bytes of a connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The half of a connection that owns the socket.
struct Task {
    shared: Arc<Shared>,
    closed: CancellationToken,
    max_response_bytes: usize,
}

impl Task {
    async fn run(self, stream: Stream, frames: mpsc::Receiver<Bytes>) {
        match stream {
            Stream::Plain(stream) => {
                let (read_half, write_half) = stream.into_split();
                self.run_halves(read_half, write_half, frames).await;
            }
            Stream::Tls(stream) => {
                let (read_half, write_half) = tokio::io::split(*stream);
                self.run_halves(read_half, write_half, frames).await;
            }
        }
    }

    async fn run_halves(
        self,
        read_half: impl AsyncRead + Unpin + Send,
        write_half: impl AsyncWrite + Unpin + Send,
        frames: mpsc::Receiver<Bytes>,
    ) {
        let failure = tokio::select! {
            () = self.closed.cancelled() => self.shared.disconnected(None),
            failure = self.read(read_half) => failure,
            failure = self.write(write_half, frames) => failure,
        };
        self.shared.poison(&failure);
    }

    async fn write(
        &self,
        mut socket: impl AsyncWrite + Unpin + Send,
        mut frames: mpsc::Receiver<Bytes>,
    ) -> Error {
        while let Some(frame) = frames.recv().await {
            let mut written = socket.write_all(&frame).await;
            if written.is_ok() {
                // TLS holds a part back.
                written = socket.flush().await;
            }
            if let Err(error) = written {
                return self.shared.disconnected(Some(error));
            }
        }
        self.shared.disconnected(None)
    }

    async fn read(&self, socket: impl AsyncRead + Unpin + Send) -> Error {
        let mut socket = BufReader::with_capacity(16 << 10, socket);
        loop {
            let frame = match self.read_frame(&mut socket).await {
                Ok(frame) => frame,
                Err(error) => return error,
            };
            if let Err(error) = self.shared.deliver(frame) {
                return error;
            }
        }
    }

    /// Memory: at most the cap for one response, which is checked before anything is allocated.
    async fn read_frame(
        &self,
        socket: &mut BufReader<impl AsyncRead + Unpin + Send>,
    ) -> Result<Bytes> {
        let cut = |error| self.shared.disconnected(Some(error));
        let mut prefix = [0; PREFIX_LEN];
        let read = socket.read_exact(&mut prefix).await;
        read.map_err(|error| self.shared.closed_by_peer(error))?;
        if TLS_RECORD.iter().any(|begin| prefix.starts_with(begin)) {
            let address = Arc::clone(&self.shared.address);
            return Err(Error::WantsTls { address });
        }
        let size = match parse_length(prefix, MIN_RESPONSE_LEN, self.max_response_bytes) {
            Ok(size) => size,
            Err(frame::Error::TooLarge {
                length: size,
                limit: cap,
            }) => {
                let address = Arc::clone(&self.shared.address);
                self.shared
                    .fail_oldest(Error::ResponseTooLarge { address, size, cap });
                return Err(self.shared.disconnected(None));
            }
            Err(fault) => {
                let address = Arc::clone(&self.shared.address);
                return Err(Error::Protocol {
                    address,
                    source: Arc::new(fault),
                });
            }
        };
        let mut frame = BytesMut::with_capacity(size);
        while frame.len() < size {
            let missing = size - frame.len();
            if socket
                .read_buf(&mut (&mut frame).limit(missing))
                .await
                .map_err(cut)?
                == 0
            {
                return Err(cut(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(frame.freeze())
    }
}
