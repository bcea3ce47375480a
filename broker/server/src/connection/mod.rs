//! One connection: frames in, answers out, in order.
//!
//! Requests of a connection are handled in the order they came in, as in Apache Kafka, so a client may send the next
//! before it has the answer to the last and still gets the answers in order. Whatever is wrong with a frame ends this
//! connection and nothing else.
//!
//! A client that has several requests under way pays for one read and one write, not for one a request: requests to
//! produce that are here together are handled together, and short answers wait in the outbox while further whole
//! requests are here and each is answered without waiting for anything.
//!
//! ```text
//!  TLS handshake ─► SASL ─┐
//!                         ▼
//!  socket ─► Inbox ─► requests ─► handlers::dispatch_all ─► outbox ─► socket
//! ```
//!
//! Where a listener has TLS or SASL, both must be over by `authentication_timeout` after the connection was
//! accepted, and until then requests are small.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, task::Poll, time::Duration};

use broker_log::LogSlice;
use broker_protocol::frame;
use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use self::inbox::Inbox;
use crate::{
    broker::Shared,
    handlers::{self, Answers, Context, Reply},
    security::{Principal, Session, config::ListenerConfig, subject},
    stream::Stream,
};

mod inbox;

pub(crate) use self::inbox::LARGE_BUFFERS;

/// How long the end of a TLS connection may take to be said.
const GOODBYE: Duration = Duration::from_secs(1);

/// Bytes of a file that are sent at once: others are served in between.
const SENT_AT_ONCE: usize = 1024 * 1024;

/// Requests that are handled together, at most.
const TOGETHER: usize = 64;

/// Bytes of answers that wait in the outbox for more; a longer answer is written by itself.
const OUTBOX: usize = 16 * 1024;

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
    let inbox = Inbox::new(&shared, &stop);
    let mut connection = Connection {
        origin: Origin {
            shared,
            listener,
            principal,
            local,
            peer,
            stop,
        },
        stream,
        inbox,
        outbox: BytesMut::new(),
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

/// Where the requests of a connection come from, for the handlers.
struct Origin {
    shared: Arc<Shared>,
    listener: Arc<ListenerConfig>,
    principal: Principal,
    local: SocketAddr,
    peer: SocketAddr,
    stop: CancellationToken,
}

impl Origin {
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
}

struct Connection {
    origin: Origin,
    stream: Stream,
    /// Requests not yet handled.
    inbox: Inbox,
    /// Answers not yet written.
    outbox: BytesMut,
}

impl Connection {
    /// Answers until the client leaves or the broker stops; first of all it must be known who the client is.
    async fn serve(&mut self, deadline: Instant) -> Result<(), Closed> {
        if self.origin.listener.protocol.has_sasl() {
            let known = timeout_at(deadline, self.authenticate()).await;
            let Some(principal) = known.map_err(|_| Closed::Unauthenticated)?? else {
                return Ok(());
            };
            debug!(peer = %self.origin.peer, %principal, "client authenticated");
            self.origin.principal = principal;
        }
        self.inbox.trust();
        loop {
            if !self.inbox.has_request() {
                self.send().await?;
            }
            let Some(request) = self.inbox.next(&mut self.stream).await? else {
                return self.send().await;
            };
            let requests = self.together(request);
            let Answers { reply, refused } = self.answer(requests).await?;
            match reply {
                None => {}
                Some(reply) if self.may_wait(&reply) => {
                    if self.outbox.is_empty() {
                        self.outbox = reply.frame;
                    } else {
                        self.outbox.extend_from_slice(&reply.frame);
                    }
                }
                Some(reply) => {
                    self.send().await?;
                    self.write(reply).await?;
                }
            }
            if let Some(refused) = refused {
                self.send().await?;
                return Err(refused.into());
            }
        }
    }

    /// Whether an answer may wait for more: it is short, and nothing goes with it.
    fn may_wait(&self, reply: &Reply) -> bool {
        reply.files.is_empty() && self.outbox.len() + reply.len() <= OUTBOX
    }

    /// The request, and those behind it that are here and may be handled together with it.
    fn together(&mut self, request: Bytes) -> Vec<Bytes> {
        let is_produce = handlers::is_produce(&request);
        let mut requests = vec![request];
        while is_produce
            && requests.len() < TOGETHER
            && let Some(request) = self.inbox.ready_if(handlers::is_produce)
        {
            requests.push(request);
        }
        requests
    }

    /// Writes the answers that wait.
    async fn send(&mut self) -> Result<(), Closed> {
        let patience = self.origin.shared.config.idle_timeout;
        write_all(&mut self.stream, &mut self.outbox, patience).await
    }

    /// Lets the client authenticate: who it is. `None` when it has left, or the broker stops.
    async fn authenticate(&mut self) -> Result<Option<Principal>, Closed> {
        let mut session = Session::Start;
        while let Some(frame) = self.inbox.next(&mut self.stream).await? {
            let reply = handlers::authenticate(&self.origin.context(), &mut session, frame)?;
            match session {
                Session::Done(principal) => {
                    self.write(reply).await?;
                    return Ok(Some(principal));
                }
                Session::Failed(reason) => {
                    let sasl = self.origin.shared.config.sasl.as_ref();
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

    /// Handles requests; if they wait for something, the answers so far go first. A client that leaves while its
    /// answer is awaited frees what it held.
    async fn answer(&mut self, requests: Vec<Bytes>) -> Result<Answers, Closed> {
        let Self {
            origin,
            stream,
            inbox,
            outbox,
        } = self;
        let context = origin.context();
        let mut dispatch = pin!(handlers::dispatch_all(&context, requests));
        if let Poll::Ready(answers) = futures::poll!(dispatch.as_mut()) {
            return Ok(answers);
        }
        write_all(stream, outbox, origin.shared.config.idle_timeout).await?;
        tokio::select! {
            biased;
            answers = dispatch => Ok(answers),
            () = stream.client_left(inbox.unread()) => Err(Closed::ClientLeft),
        }
    }

    async fn write(&mut self, reply: Reply) -> Result<(), Closed> {
        let Reply {
            mut frame,
            files,
            permit,
            ..
        } = reply;
        let patience = self.origin.shared.config.idle_timeout;
        let mut written = 0;
        for (position, slice) in files {
            let mut before = frame.split_to(position.saturating_sub(written));
            written = position;
            while before.has_remaining() {
                let sending = self.stream.write_before_file(&mut before);
                if at_once_or_within(patience, sending).await? == 0 {
                    return Err(Closed::ClientLeft);
                }
            }
            send_file(&mut self.stream, &slice, patience).await?;
        }
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
        let sending = async {
            let written = stream.write_buf(bytes).await?;
            stream.flush().await?;
            Ok::<_, io::Error>(written)
        };
        if at_once_or_within(patience, sending).await? == 0 {
            return Err(Closed::ClientLeft);
        }
    }
    Ok(())
}

/// What `sending` gives; it has time until `patience` is over. A timer is made only when it has to wait.
async fn at_once_or_within<T>(
    patience: Duration,
    sending: impl Future<Output = io::Result<T>>,
) -> Result<T, Closed> {
    let mut sending = pin!(sending);
    if let Poll::Ready(sent) = futures::poll!(sending.as_mut()) {
        return Ok(sent?);
    }
    let sent = timeout(patience, sending).await;
    Ok(sent.map_err(|_| Closed::Idle)??)
}

/// Sends a part of a log, of which some must be taken within `patience`.
async fn send_file(
    stream: &mut Stream,
    slice: &LogSlice,
    patience: Duration,
) -> Result<(), Closed> {
    let Some(file) = slice.file() else {
        return Ok(());
    };
    let mut done = 0;
    while done < slice.len() {
        let (position, len) = (slice.position() + done as u64, slice.len() - done);
        let sending = stream.send_file(file, position, len.min(SENT_AT_ONCE));
        match at_once_or_within(patience, sending).await? {
            0 => return Err(Closed::Io(io::ErrorKind::UnexpectedEof.into())),
            sent => done += sent,
        }
    }
    Ok(())
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
