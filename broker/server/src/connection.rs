//! One connection: frames in, answers out, in order.
//!
//! Requests of a connection are handled one after the other, as in Apache Kafka, so a client may send the next
//! before it has the answer to the last and still gets the answers in order. The next request stays in the
//! socket until then. Whatever is wrong with a frame ends this connection and nothing else.
//!
//! A client that has several requests under way pays for one write, not for one an answer: short answers wait in the
//! outbox while further whole requests are here and each is answered without waiting for anything.
//!
//! ```text
//!  TLS handshake ─► SASL ─┐
//!                         ▼
//!  length ─► limit ─► byte permit ─► body ─► handlers::dispatch ─► answer
//! ```
//!
//! Where a listener has TLS or SASL, both must be over by `authentication_timeout` after the connection was
//! accepted, and until then requests are small.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, task::Poll, time::Duration};

use broker_protocol::frame;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::{
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::{
    broker::Shared,
    handlers::{self, Context, Reply},
    security::{Principal, Session, config::ListenerConfig, subject},
    stream::Stream,
};

/// Read buffer of a connection; a longer frame gets memory of its own, which goes with the request.
const READ_BUFFER: usize = 16 * 1024;

/// Requests up to this many bytes are read without a permit.
const SMALL_REQUEST: usize = 64 * 1024;

/// Largest request of a client that has yet to authenticate; a token has some hundred bytes.
const UNAUTHENTICATED_REQUEST: usize = 16 * 1024;

/// How long the end of a TLS connection may take to be said.
const GOODBYE: Duration = Duration::from_secs(1);

/// Bytes of answers that wait in the outbox for more; a longer answer is written by itself.
const OUTBOX: usize = 16 * 1024;

/// What a frame's length reads as if it is the beginning of a TLS handshake.
const TLS_HELLO: [u8; 2] = [0x16, 0x03];

/// Why a connection was closed by this side.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    /// No request has such a length.
    #[error(transparent)]
    BadLength(#[from] frame::Error),
    /// Neither a request nor room for an answer for too long.
    #[error("idle for too long")]
    Idle,
    /// A request began and did not end.
    #[error("the request did not arrive in time")]
    Stalled,
    /// The client closed the connection in the middle of a frame, or while its answer was awaited.
    #[error("the client left")]
    ClientLeft,
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(io::Error),
    /// TLS where none is spoken.
    #[error("the client speaks TLS, this listener does not")]
    UnexpectedTls,
    /// TLS handshake and authentication were not over in time.
    #[error("not authenticated in time")]
    Unauthenticated,
    /// The client could not authenticate.
    #[error("not authenticated: {0}")]
    NotAuthenticated(String),
    /// The request is not answered.
    #[error(transparent)]
    Refused(#[from] handlers::Refused),
    /// The network failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

impl Closed {
    /// Whether somebody was not let in.
    const fn is_rejection(&self) -> bool {
        matches!(
            self,
            Self::Handshake(_)
                | Self::UnexpectedTls
                | Self::Unauthenticated
                | Self::NotAuthenticated(_)
                | Self::Refused(handlers::Refused::Unauthenticated { .. })
        )
    }
}

/// A connection as it was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// Its socket.
    pub(crate) socket: TcpStream,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// Where it came in.
    pub(crate) listener: Arc<ListenerConfig>,
}

/// Serves one connection until the client leaves, `stop` is cancelled or something is wrong.
pub(crate) async fn run(
    shared: Arc<Shared>,
    accepted: Accepted,
    stop: CancellationToken,
) -> Result<(), Closed> {
    let (peer, listener) = (accepted.peer, Arc::clone(&accepted.listener));
    let _panic_log = PanicLog(peer);
    let ended = serve(Arc::clone(&shared), accepted, stop).await;
    if let Err(reason) = &ended
        && reason.is_rejection()
    {
        let security = &shared.security;
        security.note_failure(peer, &listener.name, &reason.to_string());
        shared.metrics.unauthenticated.inc();
    }
    ended
}

async fn serve(
    shared: Arc<Shared>,
    accepted: Accepted,
    stop: CancellationToken,
) -> Result<(), Closed> {
    let deadline = Instant::now() + shared.config.authentication_timeout;
    let Accepted {
        socket,
        peer,
        listener,
    } = accepted;
    socket.set_nodelay(true)?;
    let local = socket.local_addr()?;
    debug!(%peer, listener = %listener.name, "connection accepted");
    let secured = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        secured = timeout_at(deadline, secure(&shared, socket, &listener)) => secured,
    };
    let (stream, principal) = secured.map_err(|_| Closed::Unauthenticated)??;
    let mut connection = Connection {
        shared,
        listener,
        principal,
        local,
        peer,
        stream,
        buffer: BytesMut::new(),
        outbox: BytesMut::new(),
        request_limit: UNAUTHENTICATED_REQUEST,
        stop,
    };
    let ended = connection.serve(deadline).await;
    // Best effort: who has gone does not hear it.
    let _said = timeout(GOODBYE, connection.stream.shutdown()).await;
    ended
}

/// The TLS handshake, where the listener has one, and who the client is by its certificate.
async fn secure(
    shared: &Shared,
    socket: TcpStream,
    listener: &ListenerConfig,
) -> Result<(Stream, Principal), Closed> {
    let tls = shared.security.tls();
    let Some(tls) = tls.filter(|_| listener.protocol.has_tls()) else {
        return Ok((Stream::Plain(socket), Principal::anonymous()));
    };
    let accepted = tls.acceptor(listener.protocol).accept(socket).await;
    let stream = accepted.map_err(Closed::Handshake)?;
    let certificate = stream.get_ref().1.peer_certificates();
    let principal = match certificate.and_then(<[_]>::first) {
        None => Principal::anonymous(),
        Some(certificate) => {
            let unnamed = || Closed::NotAuthenticated("a certificate without a subject".to_owned());
            Principal::user(&subject(certificate).ok_or_else(unnamed)?)
        }
    };
    Ok((Stream::Tls(Box::new(stream)), principal))
}

struct Connection {
    shared: Arc<Shared>,
    listener: Arc<ListenerConfig>,
    principal: Principal,
    local: SocketAddr,
    peer: SocketAddr,
    stream: Stream,
    /// Bytes received and not yet handled.
    buffer: BytesMut,
    /// Answers not yet written.
    outbox: BytesMut,
    /// Bytes of the largest request that is read.
    request_limit: usize,
    stop: CancellationToken,
}

impl Connection {
    /// Answers until the client leaves or the broker stops; first of all it must be known who the client is.
    async fn serve(&mut self, deadline: Instant) -> Result<(), Closed> {
        if self.listener.protocol.has_sasl() {
            let known = timeout_at(deadline, self.authenticate()).await;
            let Some(principal) = known.map_err(|_| Closed::Unauthenticated)?? else {
                return Ok(());
            };
            debug!(peer = %self.peer, %principal, "client authenticated");
            self.principal = principal;
        }
        let limit = self.shared.config.max_request_bytes.as_u64();
        self.request_limit = usize::try_from(limit).unwrap_or(usize::MAX);
        loop {
            if !self.has_whole_frame() {
                self.send().await?;
            }
            let Some((frame, permit)) = self.next_frame().await? else {
                return self.send().await;
            };
            let answered = self.answer(frame).await;
            drop(permit);
            match answered {
                Ok(None) => {}
                Ok(Some(reply)) if self.outbox.len() + reply.frame.len() <= OUTBOX => {
                    self.outbox.extend_from_slice(&reply.frame);
                }
                Ok(Some(reply)) => {
                    self.send().await?;
                    self.write(reply).await?;
                }
                Err(closed) => {
                    self.send().await?;
                    return Err(closed);
                }
            }
        }
    }

    /// Whether a further request is in the buffer, whole.
    fn has_whole_frame(&self) -> bool {
        let Some(prefix) = self.buffer.first_chunk() else {
            return false;
        };
        let length = usize::try_from(i32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        self.buffer.len() - prefix.len() >= length
    }

    /// Writes the answers that wait.
    async fn send(&mut self) -> Result<(), Closed> {
        let patience = self.shared.config.idle_timeout;
        write_all(&mut self.stream, &mut self.outbox, patience).await
    }

    /// Lets the client authenticate: who it is. `None` when it has left, or the broker stops.
    async fn authenticate(&mut self) -> Result<Option<Principal>, Closed> {
        let mut session = Session::Start;
        while let Some((frame, _no_permit)) = self.next_frame().await? {
            let reply = handlers::authenticate(&self.context(), &mut session, frame)?;
            match session {
                Session::Done(principal) => {
                    self.write(reply).await?;
                    return Ok(Some(principal));
                }
                Session::Failed(reason) => {
                    let sasl = self.shared.config.sasl.as_ref();
                    tokio::time::sleep(sasl.map_or(Duration::ZERO, |sasl| sasl.failure_delay))
                        .await;
                    self.write(reply).await?;
                    return Err(Closed::NotAuthenticated(reason));
                }
                Session::Start | Session::Chosen(_) | Session::Challenged(..) => {
                    self.write(reply).await?;
                }
            }
        }
        Ok(None)
    }

    fn context(&self) -> Context<'_> {
        Context {
            broker: &self.shared,
            stop: &self.stop,
            listener: &self.listener,
            principal: &self.principal,
            local: self.local,
            peer: self.peer,
        }
    }

    /// The next request without its length, and the permit for its bytes. `None` when the client has left
    /// between two requests, or the broker stops and no whole request is buffered.
    async fn next_frame(&mut self) -> Result<Option<(Bytes, OwnedSemaphorePermit)>, Closed> {
        let Some((length, begun)) = self.next_length().await? else {
            return Ok(None);
        };
        // Small requests take no permit: a few large ones that are slow to arrive must not keep everybody
        // from asking for metadata. `max_connections` bounds them.
        let counted = if length <= SMALL_REQUEST { 0 } else { length };
        // Just checked to be within the limits.
        let permits = u32::try_from(counted).unwrap_or(u32::MAX);
        let budget = Arc::clone(&self.shared.request_budget).acquire_many_owned(permits);
        let permit = tokio::select! {
            () = self.stop.cancelled() => return Ok(None),
            permit = budget => match permit {
                Ok(permit) => permit,
                Err(_) => return Ok(None),
            },
        };
        let (stop, patience) = (self.stop.clone(), self.shared.config.request_read_timeout);
        let frame = tokio::select! {
            biased;
            frame = timeout_at(begun + patience, self.body(length)) => {
                frame.map_err(|_| Closed::Stalled)??
            }
            () = stop.cancelled() => return Ok(None),
        };
        Ok(Some((frame, permit)))
    }

    /// The next frame's length, taken from the buffer, and when its first byte was here.
    async fn next_length(&mut self) -> Result<Option<(usize, Instant)>, Closed> {
        let config = Arc::clone(&self.shared.config);
        let stop = self.stop.clone();
        if self.buffer.is_empty() {
            let read = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                read = timeout(config.idle_timeout, self.read_more()) => {
                    read.map_err(|_| Closed::Idle)??
                }
            };
            if read == 0 {
                return Ok(None);
            }
        }
        let begun = Instant::now();
        while self.buffer.len() < frame::PREFIX_LEN {
            let read = tokio::select! {
                read = timeout_at(begun + config.request_read_timeout, self.read_more()) => {
                    read.map_err(|_| Closed::Stalled)??
                }
                () = stop.cancelled() => return Ok(None),
            };
            if read == 0 {
                return Err(Closed::ClientLeft);
            }
        }
        let prefix = self.buffer.get_i32().to_be_bytes();
        let length = frame::parse_length(prefix, frame::MIN_REQUEST_LEN, self.request_limit);
        match length {
            Ok(length) => Ok(Some((length, begun))),
            Err(_) if prefix.starts_with(&TLS_HELLO) => Err(Closed::UnexpectedTls),
            Err(error) => Err(error.into()),
        }
    }

    async fn read_more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_BUFFER);
        self.stream.read_buf(&mut self.buffer).await
    }

    /// Reads until `length` bytes are here, and takes them out of the buffer.
    async fn body(&mut self, length: usize) -> Result<Bytes, Closed> {
        if length <= READ_BUFFER || self.buffer.len() >= length {
            while self.buffer.len() < length {
                if self.read_more().await? == 0 {
                    return Err(Closed::ClientLeft);
                }
            }
            return Ok(self.buffer.split_to(length).freeze());
        }
        let mut frame = BytesMut::with_capacity(length);
        frame.extend_from_slice(&self.buffer);
        self.buffer.clear();
        while frame.len() < length {
            let missing = length - frame.len();
            if self
                .stream
                .read_buf(&mut (&mut frame).limit(missing))
                .await?
                == 0
            {
                return Err(Closed::ClientLeft);
            }
        }
        Ok(frame.freeze())
    }

    /// Handles one request; if it waits for something, the answers so far go first. A client that leaves while its
    /// answer is awaited frees what it held.
    async fn answer(&mut self, frame: Bytes) -> Result<Option<Reply>, Closed> {
        let Self {
            stream,
            buffer,
            outbox,
            ..
        } = self;
        let context = Context {
            broker: &self.shared,
            stop: &self.stop,
            listener: &self.listener,
            principal: &self.principal,
            local: self.local,
            peer: self.peer,
        };
        let mut dispatch = pin!(handlers::dispatch(&context, frame));
        if let Poll::Ready(reply) = futures::poll!(dispatch.as_mut()) {
            return Ok(reply?);
        }
        write_all(stream, outbox, self.shared.config.idle_timeout).await?;
        tokio::select! {
            biased;
            reply = dispatch => Ok(reply?),
            () = stream.client_left(buffer) => Err(Closed::ClientLeft),
        }
    }

    async fn write(&mut self, reply: Reply) -> Result<(), Closed> {
        let Reply {
            mut frame, permit, ..
        } = reply;
        let patience = self.shared.config.idle_timeout;
        write_all(&mut self.stream, &mut frame, patience).await?;
        drop(permit);
        Ok(())
    }
}

/// Writes all of `bytes`, of which some must be taken within `patience`.
async fn write_all(
    stream: &mut Stream,
    bytes: &mut BytesMut,
    patience: Duration,
) -> Result<(), Closed> {
    if bytes.is_empty() {
        return Ok(());
    }
    while bytes.has_remaining() {
        let written = timeout(patience, stream.write_buf(bytes)).await;
        if written.map_err(|_| Closed::Idle)?? == 0 {
            return Err(Closed::ClientLeft);
        }
    }
    let flushed = timeout(patience, stream.flush()).await;
    Ok(flushed.map_err(|_| Closed::Idle)??)
}

/// Says so when a connection ends by a panic, which the runtime confines to its task.
struct PanicLog(SocketAddr);

impl Drop for PanicLog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            error!(peer = %self.0, "a request failed inside the broker; its connection is closed");
        }
    }
}
