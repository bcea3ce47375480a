//! What a client has sent: bytes in, whole requests out.
//!
//! ```text
//!  socket ─► buffer ─► length ─► limit ─► byte permit ─► the rest ─► request
//! ```
//!
//! Requests are slices of the buffer, which is used again once they are gone. It has 16 KiB at first. A client that has
//! more than that under way gets a larger one, so that one read takes in several requests, as long as the broker
//! has memory set aside for that; a request larger than either gets what it needs, within the broker's bytes in
//! flight, taken before the request is read. Both are given back when the client has been silent for a moment.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use broker_protocol::frame;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::Closed;
use crate::{broker::Shared, stream::Stream};

/// Bytes of a buffer at first.
const SMALL_BUFFER: usize = 16 * 1024;

/// Bytes of the buffer of a client that has much under way.
const LARGE_BUFFER: usize = 256 * 1024;

/// Bytes of all such buffers of a broker.
pub(crate) const LARGE_BUFFERS: usize = 32 * 1024 * 1024;

/// Requests up to this many bytes are read without a permit.
const SMALL_REQUEST: usize = 64 * 1024;

/// Largest request of a client that has yet to authenticate; a token has some hundred bytes.
const UNAUTHENTICATED_REQUEST: usize = 16 * 1024;

/// How long a silent client's buffer is kept as large as it was.
const LINGER: Duration = Duration::from_millis(100);

/// What a frame's length reads as if it is the beginning of a TLS handshake.
const TLS_HELLO: [u8; 2] = [0x16, 0x03];

/// The requests of one connection.
pub(super) struct Inbox {
    shared: Arc<Shared>,
    stop: CancellationToken,
    /// Bytes received and not yet taken.
    buffer: BytesMut,
    /// For a buffer of [`LARGE_BUFFER`].
    large: Option<OwnedSemaphorePermit>,
    /// For a buffer that one request made larger than that, of the broker's bytes in flight.
    in_flight: Option<OwnedSemaphorePermit>,
    /// Rings when a client may have been silent for a moment.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes of the largest request that is read.
    limit: usize,
}

impl Inbox {
    /// Empty; takes small requests only until [`Inbox::trust`].
    pub(super) fn new(shared: &Arc<Shared>, stop: &CancellationToken) -> Self {
        Self {
            shared: Arc::clone(shared),
            stop: stop.clone(),
            buffer: BytesMut::new(),
            large: None,
            in_flight: None,
            timer: None,
            limit: UNAUTHENTICATED_REQUEST,
        }
    }

    /// It is known who the client is: from now on requests may be as large as configured.
    pub(super) fn trust(&mut self) {
        let limit = self.shared.config.max_request_bytes.as_u64();
        self.limit = usize::try_from(limit).unwrap_or(usize::MAX);
    }

    /// Where bytes go that are read for another reason than to take a request.
    pub(super) fn unread(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next request without its length, if it is here whole.
    pub(super) fn ready(&mut self) -> Option<Bytes> {
        let length = self.peek()?;
        self.buffer.advance(frame::PREFIX_LEN);
        Some(self.buffer.split_to(length).freeze())
    }

    /// [`Inbox::ready`] for a request that `is` what is looked for.
    pub(super) fn ready_if(&mut self, is: impl FnOnce(&[u8]) -> bool) -> Option<Bytes> {
        let length = self.peek()?;
        let request = self.buffer.get(frame::PREFIX_LEN..)?.get(..length)?;
        if is(request) { self.ready() } else { None }
    }

    /// Whether a request is here whole.
    pub(super) fn has_request(&self) -> bool {
        self.peek().is_some()
    }

    /// The length of the next request, if it is here whole.
    fn peek(&self) -> Option<usize> {
        let prefix = self.buffer.first_chunk()?;
        let length = frame::parse_length(*prefix, frame::MIN_REQUEST_LEN, self.limit).ok()?;
        (self.buffer.len() - prefix.len() >= length).then_some(length)
    }

    /// The next request without its length. `None` when the client has left between two requests, or the broker
    /// stops and no whole request is here.
    pub(super) async fn next(&mut self, stream: &mut Stream) -> Result<Option<Bytes>, Closed> {
        if let Some(request) = self.ready() {
            return Ok(Some(request));
        }
        if self.buffer.is_empty() {
            let stop = self.stop.clone();
            let read = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                read = self.first(stream) => read?,
            };
            if read == 0 {
                return Ok(None);
            }
            if let Some(request) = self.ready() {
                return Ok(Some(request));
            }
        }
        let Some((length, begun)) = self.length(stream).await? else {
            return Ok(None);
        };
        if !self.admit(length).await {
            return Ok(None);
        }
        let (stop, patience) = (self.stop.clone(), self.shared.config.request_read_timeout);
        tokio::select! {
            biased;
            request = timeout_at(begun + patience, self.rest(stream, length)) => {
                Ok(Some(request.map_err(|_| Closed::Stalled)??))
            }
            () = stop.cancelled() => Ok(None),
        }
    }

    /// The length of the next request, of which there is a part, taken from the buffer, and since when there is. `None`
    /// when the broker stops.
    async fn length(&mut self, stream: &mut Stream) -> Result<Option<(usize, Instant)>, Closed> {
        let stop = self.stop.clone();
        let begun = Instant::now();
        let deadline = begun + self.shared.config.request_read_timeout;
        while self.buffer.len() < frame::PREFIX_LEN {
            let read = tokio::select! {
                read = timeout_at(deadline, self.fill(stream, frame::PREFIX_LEN)) => {
                    read.map_err(|_| Closed::Stalled)??
                }
                () = stop.cancelled() => return Ok(None),
            };
            if read == 0 {
                return Err(Closed::ClientLeft);
            }
        }
        let prefix = self.buffer.get_i32().to_be_bytes();
        let length = frame::parse_length(prefix, frame::MIN_REQUEST_LEN, self.limit);
        match length {
            Ok(length) => Ok(Some((length, begun))),
            Err(_) if prefix.starts_with(&TLS_HELLO) => Err(Closed::UnexpectedTls),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for memory for a request of this length. False when the broker stops.
    ///
    /// Small requests wait for nothing: a few large ones that are slow to arrive must not keep everybody from
    /// asking for metadata. `max_connections` bounds them.
    async fn admit(&mut self, length: usize) -> bool {
        let covered = match &self.in_flight {
            Some(permit) => permit.num_permits(),
            None if self.large.is_some() => LARGE_BUFFER,
            None => SMALL_REQUEST,
        };
        if length <= covered {
            return true;
        }
        // Nothing is held while waiting for more.
        self.shrink();
        // Just checked to be within the limits.
        let permits = u32::try_from(length).unwrap_or(u32::MAX);
        let budget = Arc::clone(&self.shared.request_budget).acquire_many_owned(permits);
        let permit = tokio::select! {
            () = self.stop.cancelled() => None,
            permit = budget => permit.ok(),
        };
        self.in_flight = permit;
        self.in_flight.is_some()
    }

    /// Reads until `length` bytes are here, and takes them out of the buffer.
    async fn rest(&mut self, stream: &mut Stream, length: usize) -> Result<Bytes, Closed> {
        while self.buffer.len() < length {
            if self.fill(stream, length).await? == 0 {
                return Err(Closed::ClientLeft);
            }
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Reads the first bytes of a request; 0 when the client has left. A client that is silent for a moment has its
    /// buffer taken from it. Cancel safe.
    async fn first(&mut self, stream: &mut Stream) -> Result<usize, Closed> {
        if self.in_flight.is_some() && is_exhausted(&self.shared.request_budget) {
            self.shrink();
        }
        let idle_timeout = self.shared.config.idle_timeout;
        let linger = LINGER.min(idle_timeout);
        let since = Instant::now();
        // One timer for all waits: it is set again when it rings, not for each request.
        let timer = self.timer.take();
        let mut timer = timer.unwrap_or_else(|| Box::pin(sleep_until(since + linger)));
        loop {
            tokio::select! {
                biased;
                read = self.fill(stream, 0) => {
                    self.timer = Some(timer);
                    return Ok(read?);
                }
                () = timer.as_mut() => {}
            }
            if since.elapsed() >= linger {
                break;
            }
            timer.as_mut().reset(since + linger);
        }
        self.large = None;
        self.shrink();
        let awaken = async {
            stream.readable().await?;
            self.fill(stream, 0).await
        };
        let read = timeout(idle_timeout.saturating_sub(linger), awaken).await;
        Ok(read.map_err(|_| Closed::Idle)??)
    }

    /// Lets go of what one request made larger than usual; of bytes that are here there are no more than usual.
    fn shrink(&mut self) {
        self.in_flight = None;
        let kept = std::mem::take(&mut self.buffer);
        if !kept.is_empty() {
            self.buffer.extend_from_slice(&kept);
        }
    }

    /// Bytes of the buffer between requests.
    fn usual(&self) -> usize {
        if self.large.is_some() {
            LARGE_BUFFER
        } else {
            SMALL_BUFFER
        }
    }

    /// Reads what there is, into a buffer with room for `wanted` bytes in all. Cancel safe.
    async fn fill(&mut self, stream: &mut Stream, wanted: usize) -> io::Result<usize> {
        let (held, size) = (self.buffer.len(), wanted.max(self.usual()));
        if held == 0 || self.buffer.capacity() < wanted {
            self.make_room(size);
        }
        // Behind a request that is larger than usual nothing is read: it is not known how large its successor is.
        let room = size.min(self.buffer.capacity()).saturating_sub(held);
        let read = stream.read_buf(&mut (&mut self.buffer).limit(room)).await?;
        if read == room && wanted <= SMALL_BUFFER && self.large.is_none() {
            let budget = Arc::clone(&self.shared.large_buffers);
            let permits = u32::try_from(LARGE_BUFFER).unwrap_or(u32::MAX);
            self.large = budget.try_acquire_many_owned(permits).ok();
        }
        Ok(read)
    }

    /// Makes the buffer as large as `size`, with its memory if no request is left in that.
    fn make_room(&mut self, size: usize) {
        if self.buffer.try_reclaim(size - self.buffer.len()) {
            return;
        }
        // So that the next request of this length fits behind its own length.
        let mut buffer = BytesMut::with_capacity(frame::PREFIX_LEN + size);
        buffer.extend_from_slice(&self.buffer);
        self.buffer = buffer;
    }
}

/// Whether somebody waits for a permit.
fn is_exhausted(budget: &Semaphore) -> bool {
    budget.available_permits() == 0
}
