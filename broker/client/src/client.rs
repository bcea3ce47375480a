//! The handle everything hangs on, and how a request finds its broker.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use broker_protocol::ByteString;
use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::TopicName;
use broker_protocol::messages::Request;
use tokio::time::Instant;
use tracing::debug;

use crate::backoff::{RetryPolicy, Subject, retry};
use crate::config::ClientConfig;
use crate::connection::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::{Leader, Metadata};
use crate::pool::{Pool, Purpose};
use crate::tasks::Tasks;
use crate::tls;

/// A client of one cluster. Clones share connections and metadata; the last one dropped, with the
/// ranges and producers made from it, closes everything.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: ClientConfig,
    bootstrap: Vec<Arc<str>>,
    pub(crate) pool: Pool,
    pub(crate) metadata: Metadata,
    /// Address of the coordinator of each group asked about.
    pub(crate) coordinators: Mutex<BTreeMap<String, Arc<str>>>,
    pub(crate) tasks: Tasks,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Client {
    /// Connects to the first broker of the bootstrap list that answers, trying the whole list again
    /// until [`connect_timeout`](ClientConfig::connect_timeout) has passed. Cancel safe. Background
    /// tasks run on the runtime this is called in.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]; [`Error::Unreachable`] naming all addresses; [`Error::Tls`],
    /// [`Error::WantsTls`], [`Error::NotAuthenticated`] and others about the security of the listener;
    /// [`Error::Protocol`] if something else than a broker answers.
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        config.validate()?;
        let tls = match &config.tls {
            Some(tls) => Some(tls::connector(tls).await?),
            None => None,
        };
        let login = match &config.sasl {
            Some(sasl) => Some(Arc::new(sasl.login().await?)),
            None => None,
        };
        let settings = Settings {
            tls,
            login,
            client_id: ByteString::from(config.client_id.as_str()),
            connect_timeout: config.connect_timeout,
            max_response_bytes: config.max_response_bytes(),
        };
        let tasks = Tasks::new();
        let bootstrap = config
            .bootstrap
            .iter()
            .map(|address| Arc::from(address.as_str()));
        let client = Self {
            inner: Arc::new(Inner {
                bootstrap: bootstrap.collect(),
                pool: Pool::new(settings, tasks.clone()),
                metadata: Metadata::default(),
                coordinators: Mutex::default(),
                tasks,
                config,
            }),
        };
        client.bootstrap().await?;
        Ok(client)
    }

    async fn bootstrap(&self) -> Result<()> {
        let limit = self.inner.config.connect_timeout;
        let end = Instant::now() + limit;
        let mut delays = self.policy().delays();
        let mut last = self.unreachable(Arc::new(io::ErrorKind::TimedOut.into()));
        loop {
            let Ok(outcome) = tokio::time::timeout_at(end, self.ask_metadata(Some(&[]))).await
            else {
                return Err(last);
            };
            let error = match outcome {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() != ErrorKind::Retriable => return Err(error),
                Err(error) => error,
            };
            debug!(%error, "no broker of the bootstrap list answers, retrying");
            last = error;
            let next = Instant::now() + delays.next();
            if next >= end {
                return Err(last);
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Closes all connections and ends all background tasks, those of ranges and producers made from
    /// this client or a clone of it too; returns when they have ended. What is under way fails with
    /// [`Error::Closed`] or [`Error::Disconnected`]. Dropping the last clone does the same without
    /// waiting. Cancel safe.
    pub async fn close(&self) {
        self.inner.tasks.stop();
        self.inner.tasks.ended().await;
    }

    pub(crate) fn policy(&self) -> RetryPolicy {
        RetryPolicy::of(&self.inner.config)
    }

    fn unreachable(&self, source: Arc<io::Error>) -> Error {
        let all = self.inner.metadata.addresses(&self.inner.bootstrap);
        Error::Unreachable {
            address: Arc::from(all.join(", ")),
            source,
        }
    }

    /// One try of a request to one broker, on its shared connection.
    pub(crate) async fn call<R: Request>(
        &self,
        address: &Arc<str>,
        purpose: Purpose,
        wanted: &RangeInclusive<i16>,
        request: impl FnOnce(i16) -> R,
    ) -> Result<R::Response> {
        let connection = self.inner.pool.shared(address, purpose).await?;
        connection
            .call(wanted, self.inner.config.request_timeout, request)
            .await
    }

    /// One try of a request that any broker answers: each known address once.
    pub(crate) async fn on_any<R: Request>(
        &self,
        wanted: &RangeInclusive<i16>,
        request: impl Fn(i16) -> R + Send + Sync,
    ) -> Result<R::Response> {
        let mut last = None;
        for address in self.inner.metadata.addresses(&self.inner.bootstrap) {
            match self
                .call(&address, Purpose::Control, wanted, &request)
                .await
            {
                Ok(response) => {
                    self.inner.metadata.prefer(&address);
                    return Ok(response);
                }
                Err(error) => {
                    debug!(%address, %error, "broker did not answer, trying the next");
                    last = Some(error);
                }
            }
        }
        match last {
            Some(Error::Unreachable { source, .. }) => Err(self.unreachable(source)),
            Some(error) => Err(error),
            None => Err(self.unreachable(Arc::new(io::ErrorKind::AddrNotAvailable.into()))),
        }
    }

    /// A request to a partition's leader, repeated with fresh metadata until the deadline.
    pub(crate) async fn on_leader<R: Request, T: Send>(
        &self,
        topic: &TopicName,
        partition: i32,
        wanted: &RangeInclusive<i16>,
        request: impl Fn(&Leader) -> R + Send + Sync,
        read: impl Fn(R::Response) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let subject = Subject {
            operation: R::NAME,
            topic: Some(topic),
            partition: Some(partition),
            offset: None,
        };
        let (request, read) = (&request, &read);
        retry(&self.policy(), subject, || async move {
            let leader = self.leader(topic, partition).await?;
            let call = self.call(&leader.address, Purpose::Control, wanted, |_| {
                request(&leader)
            });
            let outcome = call.await.and_then(read);
            if outcome.as_ref().is_err_and(Error::wants_refresh) {
                self.inner.metadata.forget(topic, leader.generation);
            }
            outcome
        })
        .await
    }

    /// A request to the controller, repeated until the deadline.
    pub(crate) async fn on_controller<R: Request>(
        &self,
        topic: &TopicName,
        wanted: &RangeInclusive<i16>,
        request: impl Fn(i16) -> R + Send + Sync,
        read: impl Fn(R::Response) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        let subject = Subject {
            operation: R::NAME,
            topic: Some(topic),
            partition: None,
            offset: None,
        };
        let (request, read) = (&request, &read);
        retry(&self.policy(), subject, || async move {
            self.ask_metadata(Some(&[])).await?;
            let address = self.controller_address()?;
            self.call(&address, Purpose::Control, wanted, request)
                .await
                .and_then(read)
        })
        .await
    }

    fn controller_address(&self) -> Result<Arc<str>> {
        let metadata = &self.inner.metadata;
        metadata.controller().ok_or_else(|| Error::Kafka {
            operation: "Metadata",
            code: ErrorCode::NotController,
            topic: None,
            partition: None,
            message: Some("the cluster has no controller now".to_owned()),
        })
    }
}

/// What an answer says about one thing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'a> {
    pub(crate) operation: &'static str,
    pub(crate) code: i16,
    pub(crate) topic: Option<&'a TopicName>,
    pub(crate) partition: Option<i32>,
    pub(crate) message: Option<&'a ByteString>,
}

impl Answer<'_> {
    /// An error code other than 0 as an error.
    pub(crate) fn check(self) -> Result<()> {
        ErrorCode::from_i16(self.code)
            .into_result()
            .map_err(|code| Error::Kafka {
                operation: self.operation,
                code,
                topic: self.topic.cloned(),
                partition: self.partition,
                message: self.message.map(ToString::to_string),
            })
    }
}
