//! The HTTP side for operators: `/metrics`, `/healthz`, `/readyz`, on an address of its own.
//!
//! It is here and not with the jobs because all it tells is this broker's state: another service that wants the same
//! has other reasons not to be ready. It answers from the moment its address is open, so before the logs have been
//! recovered, and until they have been closed.
//!
//! Kept small, since whoever reaches it needs no name and no password: a bounded number of connections, each for one
//! request and for a bounded time. A disk that hangs does not keep it from answering.

mod health;
mod observe;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::{debug, info};

pub(crate) use self::health::Health;
use crate::error::Error;

/// Connections at a time; one more is closed at once.
const MAX_CONNECTIONS: usize = 32;
/// Time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a request and its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest head of a request.
const HEAD_BYTES: usize = 16 * 1024;
/// Pause after a failed accept.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// What Prometheus calls its text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Of everything else.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// The open address, answering until it is dropped.
#[derive(Debug)]
pub(crate) struct Admin {
    /// Where it is.
    pub(crate) address: SocketAddr,
    /// What it tells.
    pub(crate) health: Arc<Health>,
    /// Ends its tasks.
    _stop: DropGuard,
}

impl Admin {
    /// Opens the address and begins to answer. Port 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Listen`]: it is not this machine's or taken.
    pub(crate) async fn bind(address: &str) -> Result<Self, Error> {
        let failed = |source| Error::Listen {
            address: address.to_owned(),
            source,
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let health = Arc::new(Health::default());
        let accepting = accept(socket, Arc::clone(&health), tasks.clone(), stop.clone());
        tasks.spawn(accepting);
        info!(%address, "metrics and health are served");
        Ok(Self {
            address,
            health,
            _stop: stop.drop_guard(),
        })
    }
}

async fn accept(
    socket: TcpListener,
    health: Arc<Health>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "cannot accept a connection for metrics and health");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue;
        };
        let serving = serve(stream, Arc::clone(&health), place);
        let stop = stop.clone();
        tasks.spawn(async move { stop.run_until_cancelled(serving).await });
    }
}

async fn serve(stream: TcpStream, health: Arc<Health>, place: OwnedSemaphorePermit) {
    let service = service_fn(move |request| {
        let health = Arc::clone(&health);
        async move { Ok::<_, Infallible>(answer(&health, &request).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a request for metrics or health failed"),
        Err(_) => debug!("a request for metrics or health took too long"),
    }
    drop(place);
}

async fn answer(health: &Health, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n".to_owned());
        let allowed = header::HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(header::ALLOW, allowed);
        return refused;
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "alive\n".to_owned()),
        "/readyz" => match health.reasons() {
            reasons if reasons.is_empty() => text(StatusCode::OK, "ready\n".to_owned()),
            reasons => text(StatusCode::SERVICE_UNAVAILABLE, lines(&reasons)),
        },
        "/metrics" => match health.metrics().await {
            Some(metrics) => response(StatusCode::OK, METRICS_TYPE, metrics),
            None => text(StatusCode::SERVICE_UNAVAILABLE, lines(&health.reasons())),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /metrics, /healthz and /readyz\n".to_owned(),
        ),
    }
}

fn lines(reasons: &[String]) -> String {
    reasons.iter().map(|reason| format!("{reason}\n")).collect()
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    response(status, TEXT_TYPE, body)
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}
