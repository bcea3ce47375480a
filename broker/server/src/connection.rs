//! One connection: frames in, answers out, in order.
//!
//! Requests of a connection are handled one after the other, as in Apache Kafka, so a client may send the next
//! before it has the answer to the last and still gets the answers in order. The next request stays in the
//! socket until then. Whatever is wrong with a frame ends this connection and nothing else.
//!
//! ```text
//!  length ─► limit ─► byte permit ─► body ─► handlers::dispatch ─► answer
//! ```

use std::{io, net::SocketAddr, sync::Arc};

use broker_protocol::frame;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::{
    broker::Shared,
    handlers::{self, Context, Reply},
};

/// Read buffer of a connection; a longer frame gets memory of its own, which goes with the request.
const READ_BUFFER: usize = 16 * 1024;

/// Requests up to this many bytes are read without a permit.
const SMALL_REQUEST: usize = 64 * 1024;

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
    /// The request is not answered.
    #[error(transparent)]
    Refused(#[from] handlers::Refused),
    /// The network failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

/// Serves one connection until the client leaves, `stop` is cancelled or something is wrong.
pub(crate) async fn run(
    shared: Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    stop: CancellationToken,
) -> Result<(), Closed> {
    let _panic_log = PanicLog(peer);
    stream.set_nodelay(true)?;
    let local = stream.local_addr()?;
    debug!(%peer, "connection accepted");
    let mut connection = Connection {
        shared,
        stream,
        buffer: BytesMut::new(),
        stop,
    };
    while let Some((frame, permit)) = connection.next_frame().await? {
        let reply = connection.answer(frame, local, peer).await?;
        drop(permit);
        if let Some(reply) = reply {
            connection.write(reply).await?;
        }
    }
    Ok(())
}

struct Connection {
    shared: Arc<Shared>,
    stream: TcpStream,
    /// Bytes received and not yet handled.
    buffer: BytesMut,
    stop: CancellationToken,
}

impl Connection {
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
        let limit = usize::try_from(config.max_request_bytes.as_u64()).unwrap_or(usize::MAX);
        Ok(Some((
            frame::parse_length(prefix, frame::MIN_REQUEST_LEN, limit)?,
            begun,
        )))
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

    /// Handles one request. A client that leaves while its answer is awaited frees what it held.
    async fn answer(
        &self,
        frame: Bytes,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Option<Reply>, Closed> {
        let context = Context {
            broker: &self.shared,
            stop: &self.stop,
            local,
            peer,
        };
        tokio::select! {
            biased;
            reply = handlers::dispatch(&context, frame) => Ok(reply?),
            () = client_left(&self.stream) => Err(Closed::ClientLeft),
        }
    }

    async fn write(&mut self, reply: Reply) -> Result<(), Closed> {
        let Reply { mut frame, permit } = reply;
        while frame.has_remaining() {
            let written = timeout(
                self.shared.config.idle_timeout,
                self.stream.write_buf(&mut frame),
            );
            if written.await.map_err(|_| Closed::Idle)?? == 0 {
                return Err(Closed::ClientLeft);
            }
        }
        drop(permit);
        Ok(())
    }
}

/// Ends when the client has closed its side and nothing it sent is unread; otherwise never.
async fn client_left(stream: &TcpStream) {
    let mut byte = [0];
    if !matches!(stream.peek(&mut byte).await, Ok(0) | Err(_)) {
        std::future::pending::<()>().await;
    }
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
