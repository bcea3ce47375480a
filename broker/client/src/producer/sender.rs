//! The task of one partition: takes batches from its queue, sends them in order, and does what the
//! window says.

use std::sync::Arc;
use std::time::Duration;

use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::TopicName;
use broker_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use broker_protocol::messages::{
    InitProducerIdRequest, InitProducerIdResponse, Message, ProduceRequest, ProduceResponse,
};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, ready};
use futures::stream::FuturesOrdered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::queue::PartitionQueue;
use super::record::Delivery;
use super::window::{Appended, Identity, Patience, Settled, Window};
use crate::backoff::{Delays, Subject, retry};
use crate::client::{Answer, Client};
use crate::config::{Acks, ProducerConfig};
use crate::connection::{Connection, FrameFault};
use crate::error::{Error, Result};
use crate::metadata::Leader;
use crate::pool::Purpose;

/// On top of the time the broker is given for the replicas' confirmation.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// Batches above this size are encoded off the runtime's threads.
const ENCODE_INLINE_BYTES: usize = 64 << 10;

type Outcome = Result<Appended>;

/// The producer id that partitions start with.
#[derive(Debug)]
pub(crate) struct Identities {
    client: Client,
    first: tokio::sync::Mutex<Option<Identity>>,
}

impl Identities {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            first: tokio::sync::Mutex::default(),
        }
    }

    async fn first(&self) -> Result<Identity> {
        let mut first = self.first.lock().await;
        match *first {
            Some(identity) => Ok(identity),
            None => Ok(*first.insert(self.fresh().await?)),
        }
    }

    async fn fresh(&self) -> Result<Identity> {
        let operation = "InitProducerId";
        let subject = Subject {
            operation,
            topic: None,
            partition: None,
            offset: None,
        };
        retry(&self.client.policy(), subject, || async move {
            let request = |_| InitProducerIdRequest {
                transactional_id: None,
                transaction_timeout_ms: i32::MAX,
                ..Default::default()
            };
            let response = self.client.on_any(&(0..=i16::MAX), request).await?;
            let code = response.error_code;
            Answer {
                operation,
                code,
                topic: None,
                partition: None,
                message: None,
            }
            .check()?;
            let InitProducerIdResponse {
                producer_id,
                producer_epoch,
                ..
            } = response;
            Ok(Identity {
                producer_id,
                producer_epoch,
            })
        })
        .await
    }
}

/// Where the batches of this round go: one connection, so that they arrive in order.
struct Route {
    connection: Arc<Connection>,
    leader: Leader,
}

pub(crate) struct Sender {
    client: Client,
    topic: TopicName,
    partition: i32,
    config: Arc<ProducerConfig>,
    identities: Arc<Identities>,
    queue: Arc<PartitionQueue>,
    window: Window,
    in_flight: FuturesOrdered<BoxFuture<'static, Outcome>>,
    /// A batch of this round could not be sent, so none behind it may be.
    blocked: bool,
    /// Outcomes of this round from the first failure on.
    outcomes: Vec<Outcome>,
    route: Option<Route>,
    delays: Delays,
}

impl Sender {
    pub(crate) fn new(
        client: Client,
        (topic, partition): (TopicName, i32),
        config: Arc<ProducerConfig>,
        identities: Arc<Identities>,
        queue: Arc<PartitionQueue>,
    ) -> Self {
        let policy = client.policy();
        let patience = Patience {
            delivery_timeout: config.delivery_timeout,
            unknown_topic_grace: policy.unknown_topic_grace,
        };
        Self {
            window: Window::new(topic.clone(), partition, patience),
            client,
            topic,
            partition,
            config,
            identities,
            queue,
            in_flight: FuturesOrdered::new(),
            blocked: false,
            outcomes: Vec::new(),
            route: None,
            delays: policy.delays(),
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.send_all() => {}
        }
    }

    async fn send_all(&mut self) {
        loop {
            self.fill().await;
            if !self.outcomes.is_empty() && self.in_flight.is_empty() {
                self.settle().await;
                continue;
            }
            let has_room = self.has_room();
            let queue = Arc::clone(&self.queue);
            tokio::select! {
                Some(outcome) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    self.answered(outcome);
                }
                () = queue.ready(), if has_room => {}
            }
        }
    }

    /// Whether another batch may be sent now.
    fn has_room(&self) -> bool {
        self.outcomes.is_empty()
            && !self.blocked
            && self.in_flight.len() < self.window.limit(self.config.max_in_flight)
    }

    /// Sends what may be sent: first what is to be sent again, then from the queue.
    async fn fill(&mut self) {
        while self.has_room() {
            let index = self.in_flight.len();
            if index == self.window.len() {
                let Some(batch) = self.queue.take() else {
                    return;
                };
                self.window.push(batch);
            }
            if let Err(error) = self.send(index).await {
                self.blocked = true;
                self.in_flight.push_back(Box::pin(ready(Err(error))));
                return;
            }
        }
    }

    async fn send(&mut self, index: usize) -> Result<()> {
        if self.config.idempotent && self.window.identity().is_none() {
            self.window.renew(self.identities.first().await?);
        }
        let encoded = match self.window.encoded(index) {
            Some(encoded) => encoded,
            None => self.encode(index).await?,
        };
        let healthy = self
            .route
            .as_ref()
            .is_some_and(|route| route.connection.is_healthy());
        // What is in flight decides the connection; a broken one fails the round.
        if self.route.is_none() || (self.in_flight.is_empty() && !healthy) {
            let leader = self.client.leader(&self.topic, self.partition).await?;
            let purpose = Purpose::produce(self.partition);
            let opened = self
                .client
                .inner
                .pool
                .shared(&leader.address, purpose)
                .await;
            if opened.is_err() {
                self.client
                    .inner
                    .metadata
                    .forget(&self.topic, leader.generation);
            }
            self.route = Some(Route {
                connection: opened?,
                leader,
            });
        }
        let Some(Route { connection, leader }) = &self.route else {
            return Err(Error::Closed);
        };
        let limit = self.client.inner.config.request_timeout;
        let request = self.request(encoded, limit);
        // Version 13 knows topics by id only.
        let sent = Arc::clone(connection).send(&(3..=12), limit + ANSWER_GRACE, |_| request);
        let answer = sent.await?;
        let (client, topic, partition) = (self.client.clone(), self.topic.clone(), self.partition);
        let leader = leader.clone();
        self.in_flight.push_back(Box::pin(async move {
            let outcome = match answer.await {
                Ok(response) => appended(&topic, partition, &leader.address, &response),
                Err(error) => Err(error),
            };
            if outcome.as_ref().is_err_and(Error::wants_refresh) {
                client.inner.metadata.forget(&topic, leader.generation);
            }
            outcome
        }));
        Ok(())
    }

    fn request(&self, encoded: Bytes, timeout: Duration) -> ProduceRequest {
        ProduceRequest {
            transactional_id: None,
            acks: match self.config.acks {
                Acks::All => -1,
                Acks::Leader => 1,
            },
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            topic_data: vec![TopicProduceData {
                name: self.topic.to_byte_string(),
                partition_data: vec![PartitionProduceData {
                    index: self.partition,
                    records: Some(encoded),
                }],
                ..Default::default()
            }],
        }
    }

    async fn encode(&mut self, index: usize) -> Result<Bytes> {
        let encoder = self
            .window
            .encoder(index, self.config.compression)
            .ok_or(Error::Closed)?;
        let encoded = if encoder.size() <= ENCODE_INLINE_BYTES {
            encoder.encode()
        } else {
            let work = move || encoder.encode();
            self.client
                .inner
                .tasks
                .blocking(work)
                .await
                .ok_or(Error::Closed)?
        };
        let encoded = encoded.map_err(|fault| Error::Unencodable {
            topic: self.topic.clone(),
            source: Arc::new(fault),
        })?;
        self.window.store_encoded(index, encoded.clone());
        Ok(encoded)
    }

    fn answered(&mut self, outcome: Outcome) {
        match outcome {
            Ok(appended) if self.outcomes.is_empty() => {
                self.delays.reset();
                if let Some(settled) = self.window.confirm_oldest(appended) {
                    self.tell(settled);
                }
            }
            outcome => self.outcomes.push(outcome),
        }
    }

    /// After a failure, once nothing is in flight any more.
    async fn settle(&mut self) {
        self.route = None;
        self.blocked = false;
        let outcomes = std::mem::take(&mut self.outcomes);
        let settlement = self.window.settle(outcomes, Instant::now());
        for settled in settlement.done {
            self.tell(settled);
        }
        if settlement.renew {
            warn!(topic = %self.topic, partition = self.partition, "broker lost track of the producer, starting a new sequence");
            match self.identities.fresh().await {
                Ok(identity) => self.window.renew(identity),
                Err(error) => {
                    for settled in self.window.fail_all(&error) {
                        self.tell(settled);
                    }
                }
            }
        }
        if let Some(error) = settlement.retry {
            let delay = self.delays.next();
            warn!(topic = %self.topic, partition = self.partition, %error, ?delay, "produce failed, retrying");
            tokio::time::sleep(delay).await;
        }
    }

    /// Tells the records of a batch what became of them.
    fn tell(&self, settled: Settled) {
        let Settled {
            records,
            replies,
            outcome,
        } = settled;
        let count = replies.len();
        let failed = outcome.as_ref().err().cloned();
        for (index, (record, reply)) in (0_i64..).zip(records.iter().zip(replies)) {
            let delivery = outcome.clone().map(|appended| Delivery {
                partition: self.partition,
                offset: if appended.base_offset < 0 {
                    -1
                } else {
                    appended.base_offset + index
                },
                timestamp_ms: match appended.log_append_time_ms {
                    -1 => record.timestamp_ms,
                    time => time,
                },
            });
            // Nobody may care.
            let _dropped = reply.confirmed.send(delivery);
        }
        self.queue.complete(count, failed.as_ref());
    }
}

/// What the answer says about the one batch of a request.
fn appended(
    topic: &TopicName,
    partition: i32,
    address: &Arc<str>,
    response: &ProduceResponse,
) -> Outcome {
    let found = response
        .responses
        .iter()
        .filter(|found| &*found.name == topic.as_str())
        .flat_map(|found| &found.partition_responses)
        .find(|found| found.index == partition)
        .ok_or_else(|| FrameFault::Incomplete("produced partition").at(address))?;
    let first_record = found.record_errors.first();
    let message = first_record.and_then(|record| record.batch_index_error_message.as_ref());
    let code = ErrorCode::from_i16(found.error_code);
    if code == ErrorCode::DuplicateSequenceNumber {
        // Appended by an earlier try, too long ago for the broker to know the offset.
        return Ok(Appended {
            base_offset: -1,
            log_append_time_ms: -1,
        });
    }
    Answer {
        operation: ProduceRequest::NAME,
        code: found.error_code,
        topic: Some(topic),
        partition: Some(partition),
        message: message.or(found.error_message.as_ref()),
    }
    .check()?;
    Ok(Appended {
        base_offset: found.base_offset,
        log_append_time_ms: found.log_append_time_ms,
    })
}
