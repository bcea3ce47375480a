//! A peer in this process that answers as a test tells it to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker_protocol::ByteString;
use broker_protocol::frame::{RequestHeader, encode_response};
use broker_protocol::messages::api_versions::ApiVersion;
use broker_protocol::messages::fetch::{AbortedTransaction, FetchableTopicResponse, PartitionData};
use broker_protocol::messages::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use broker_protocol::messages::metadata::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use broker_protocol::messages::{
    ApiKey, ApiVersionsResponse, FetchRequest, FetchResponse, ListOffsetsRequest,
    ListOffsetsResponse, Message, MetadataResponse, TABLE,
};
use broker_protocol::record::{BatchBuilder, Compression, stamp};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::ClientConfig;
use crate::protocol::TopicName;

/// What the peer does about a request.
pub(super) enum Reaction {
    /// Writes these bytes, then goes on.
    Write(Bytes),
    /// Writes these bytes, then closes.
    WriteAndClose(Bytes),
    /// Answers later.
    Later(Duration, Bytes),
    /// Reads on without an answer.
    Ignore,
}

/// A request as it came.
pub(super) struct Incoming {
    pub(super) header: RequestHeader,
    pub(super) body: Bytes,
}

impl Incoming {
    pub(super) fn key(&self) -> ApiKey {
        ApiKey::from_i16(self.header.api_key).unwrap()
    }

    pub(super) fn decode<M: Message>(&self) -> M {
        M::decode(&mut self.body.clone(), self.header.api_version).unwrap()
    }

    /// The frame of an answer to this request.
    pub(super) fn frame(&self, response: &impl Message) -> Bytes {
        let mut out = BytesMut::new();
        encode_response(
            &mut out,
            response,
            self.header.api_version,
            self.header.correlation_id,
        )
        .unwrap();
        out.freeze()
    }

    pub(super) fn answer(&self, response: &impl Message) -> Reaction {
        Reaction::Write(self.frame(response))
    }
}

/// Decides about a request; `None`: the peer answers as a broker would, if it can.
type Script = dyn Fn(&Incoming) -> Option<Reaction> + Send + Sync;

/// Listens until it is dropped.
pub(super) struct Peer {
    pub(super) address: String,
    pub(super) requests: Arc<Mutex<BTreeMap<ApiKey, usize>>>,
    connections: Arc<AtomicUsize>,
    stop: tokio_util::sync::CancellationToken,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(super) fn topic() -> TopicName {
    TopicName::new("t").unwrap()
}

/// Topic `t` with partition 0, led by node 1, which is this peer.
#[derive(Clone)]
pub(super) struct World {
    pub(super) leader: Arc<Mutex<Option<String>>>,
    pub(super) topic_id: Arc<Mutex<Uuid>>,
    /// Log start, high watermark.
    pub(super) offsets: Arc<Mutex<(i64, i64)>>,
    /// APIs the peer does not offer.
    pub(super) lacks: Vec<ApiKey>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            leader: Arc::default(),
            topic_id: Arc::new(Mutex::new(Uuid::from_u128(1))),
            offsets: Arc::new(Mutex::new((0, 1000))),
            lacks: Vec::new(),
        }
    }
}

impl Peer {
    pub(super) async fn start(
        script: impl Fn(&Incoming) -> Option<Reaction> + Send + Sync + 'static,
    ) -> Self {
        Self::start_in(World::default(), script).await
    }

    pub(super) async fn start_in(
        world: World,
        script: impl Fn(&Incoming) -> Option<Reaction> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = tokio_util::sync::CancellationToken::new();
        let script: Arc<Script> = Arc::new(script);
        let requests = Arc::new(Mutex::new(BTreeMap::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let tracker = TaskTracker::new();
        let (counted, opened) = (Arc::clone(&requests), Arc::clone(&connections));
        let (own_address, stopped) = (address.clone(), stop.clone());
        tracker.clone().spawn(async move {
            let accept = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    opened.fetch_add(1, Ordering::SeqCst);
                    let serve = Serve {
                        script: Arc::clone(&script),
                        world: world.clone(),
                        address: own_address.clone(),
                        requests: Arc::clone(&counted),
                    };
                    let stopped = stopped.clone();
                    tracker.spawn(async move {
                        tokio::select! {
                            () = stopped.cancelled() => {}
                            _ = serve.run(stream) => {}
                        }
                    });
                }
            };
            tokio::select! {
                () = stopped.cancelled() => {}
                () = accept => {}
            }
        });
        Self {
            address,
            requests,
            connections,
            stop,
        }
    }

    pub(super) fn count(&self, key: ApiKey) -> usize {
        self.requests
            .lock()
            .unwrap()
            .get(&key)
            .copied()
            .unwrap_or(0)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Settings with short times.
    pub(super) fn config(&self) -> ClientConfig {
        ClientConfig {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            retry_deadline: Duration::from_secs(5),
            retry_backoff: Duration::from_millis(5),
            retry_backoff_max: Duration::from_millis(20),
            unknown_topic_grace: Duration::from_millis(100),
            fetch_max_wait: Duration::from_millis(20),
            ..ClientConfig::new(&self.address)
        }
    }
}

struct Serve {
    script: Arc<Script>,
    world: World,
    address: String,
    requests: Arc<Mutex<BTreeMap<ApiKey, usize>>>,
}

impl Serve {
    async fn run(self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let size = stream.read_i32().await?;
            let mut frame = vec![0; usize::try_from(size).unwrap()];
            stream.read_exact(&mut frame).await?;
            let mut body = Bytes::from(frame);
            let header = RequestHeader::decode(&mut body).unwrap();
            let incoming = Incoming { header, body };
            *self
                .requests
                .lock()
                .unwrap()
                .entry(incoming.key())
                .or_default() += 1;
            let reaction = (self.script)(&incoming);
            match reaction.unwrap_or_else(|| self.as_a_broker(&incoming)) {
                Reaction::Write(bytes) => stream.write_all(&bytes).await?,
                Reaction::WriteAndClose(bytes) => {
                    stream.write_all(&bytes).await?;
                    return stream.shutdown().await;
                }
                Reaction::Later(delay, bytes) => {
                    tokio::time::sleep(delay).await;
                    stream.write_all(&bytes).await?;
                }
                Reaction::Ignore => {}
            }
        }
    }

    fn as_a_broker(&self, incoming: &Incoming) -> Reaction {
        let key = incoming.key();
        if key == ApiKey::ApiVersions {
            return incoming.answer(&self.versions());
        }
        if key == ApiKey::Metadata {
            return incoming.answer(&self.metadata());
        }
        assert_eq!(key, ApiKey::ListOffsets, "the script says nothing about it");
        incoming.answer(&self.list_offsets(&incoming.decode()))
    }

    fn versions(&self) -> ApiVersionsResponse {
        let offered = TABLE
            .iter()
            .filter(|(key, ..)| !self.world.lacks.contains(key));
        let api = |&(key, min_version, max_version, _): &(ApiKey, i16, i16, i16)| ApiVersion {
            api_key: key.code(),
            min_version,
            max_version,
        };
        let api_keys = offered.map(api).collect();
        ApiVersionsResponse {
            api_keys,
            ..Default::default()
        }
    }

    fn list_offsets(&self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        let asked = &request.topics[0];
        let (start, end) = *self.world.offsets.lock().unwrap();
        let earliest = asked.partitions[0].timestamp == -2;
        let offset = if earliest { start } else { end };
        let partitions = vec![ListOffsetsPartitionResponse {
            offset,
            ..Default::default()
        }];
        let topics = vec![ListOffsetsTopicResponse {
            name: asked.name.clone(),
            partitions,
        }];
        ListOffsetsResponse {
            topics,
            ..Default::default()
        }
    }

    fn metadata(&self) -> MetadataResponse {
        let leader = self.world.leader.lock().unwrap().clone();
        let broker = |node_id, address: &str| {
            let (host, port) = crate::config::split_address(address).unwrap();
            let host = ByteString::from(host);
            MetadataResponseBroker {
                node_id,
                host,
                port: i32::from(port),
                rack: None,
            }
        };
        let mut brokers = vec![broker(1, &self.address)];
        brokers.extend(leader.iter().map(|address| broker(2, address)));
        let partition = MetadataResponsePartition {
            leader_id: if leader.is_some() { 2 } else { 1 },
            leader_epoch: 0,
            ..Default::default()
        };
        let topic = MetadataResponseTopic {
            name: Some(topic().to_byte_string()),
            topic_id: *self.world.topic_id.lock().unwrap(),
            partitions: vec![partition],
            ..Default::default()
        };
        let topics = vec![topic];
        MetadataResponse {
            brokers,
            controller_id: 1,
            topics,
            ..Default::default()
        }
    }
}

/// A batch of `count` records with values of `size` bytes.
pub(super) fn batch(base_offset: i64, count: usize, size: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for _ in 0..count {
        builder.push(0, None, Some(&vec![7; size]), &[]).unwrap();
    }
    let mut bytes = builder.build().unwrap().to_vec();
    stamp(&mut bytes, base_offset, 0).unwrap();
    bytes.into()
}

/// What a fetch asks for: position and size.
pub(super) fn asked(incoming: &Incoming) -> (i64, usize) {
    let request: FetchRequest = incoming.decode();
    let partition = &request.topics[0].partitions[0];
    (
        partition.fetch_offset,
        usize::try_from(partition.partition_max_bytes).unwrap(),
    )
}

/// An answer to a fetch.
pub(super) fn fetched(end: i64, aborted: &[(i64, i64)], batches: &[Bytes]) -> FetchResponse {
    let aborted = aborted
        .iter()
        .map(|&(producer_id, first_offset)| AbortedTransaction {
            producer_id,
            first_offset,
        });
    fetched_with(PartitionData {
        high_watermark: end,
        last_stable_offset: end,
        aborted_transactions: Some(aborted.collect()),
        records: Some(Bytes::from(batches.concat()).into()),
        ..Default::default()
    })
}

pub(super) fn fetched_with(partition: PartitionData) -> FetchResponse {
    let partitions = vec![partition];
    let responses = vec![FetchableTopicResponse {
        topic: topic().to_byte_string(),
        partitions,
        ..Default::default()
    }];
    FetchResponse {
        responses,
        ..Default::default()
    }
}

pub(super) fn fetch_error(code: i16) -> FetchResponse {
    fetched_with(PartitionData {
        error_code: code,
        ..Default::default()
    })
}
