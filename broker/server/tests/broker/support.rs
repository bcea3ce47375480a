//! A broker on a free port in a temporary directory, and a client that sends what it is told.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use broker_log::disk::{Disk, RealDisk};
use broker_protocol::{
    ByteString, ErrorCode, frame,
    messages::{
        CreateTopicsRequest, FetchRequest, FetchResponse, ListOffsetsRequest, ProduceRequest,
        Request,
        create_topics::{CreatableTopic, CreatableTopicConfig},
        fetch::{FetchPartition, FetchTopic, PartitionData},
        list_offsets::{ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopic},
        produce::{PartitionProduceData, PartitionProduceResponse, TopicProduceData},
    },
    record::{BatchBuilder, Compression, RecordBatch, batches},
};
use broker_server::{Broker, Clock, Config, Error};
use bytes::{Bytes, BytesMut};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Longer than anything here may take; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A clock that stands still until told.
#[derive(Debug, Default)]
pub(crate) struct StillClock(pub(crate) AtomicI64);

impl Clock for StillClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A broker in a runtime of its own, so that it can be killed with all its tasks.
pub(crate) struct TestBroker {
    pub(crate) address: SocketAddr,
    /// Of each listener, by name.
    pub(crate) addresses: Vec<(String, SocketAddr)>,
    /// Of metrics and health.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) cluster_id: String,
    pub(crate) folder: Arc<TempDir>,
    stop: CancellationToken,
    runtime: Option<Runtime>,
    served: Option<JoinHandle<Result<(), Error>>>,
}

impl TestBroker {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(edit: impl FnOnce(&mut Config)) -> Self {
        Self::start_on(Arc::new(tempfile::tempdir().unwrap()), edit).await
    }

    pub(crate) async fn start_on(folder: Arc<TempDir>, edit: impl FnOnce(&mut Config)) -> Self {
        Self::start_clocked(
            folder,
            edit,
            Arc::new(StillClock(AtomicI64::new(1_700_000_000_000))),
        )
        .await
    }

    pub(crate) async fn start_clocked(
        folder: Arc<TempDir>,
        edit: impl FnOnce(&mut Config),
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::start_in(folder, edit, clock, Arc::new(RealDisk)).await
    }

    pub(crate) async fn start_in(
        folder: Arc<TempDir>,
        edit: impl FnOnce(&mut Config),
        clock: Arc<dyn Clock>,
        disk: Arc<dyn Disk>,
    ) -> Self {
        let config = config(folder.path(), edit);
        let open = move || Broker::open_with(config, clock, disk);
        let broker = tokio::task::spawn_blocking(open).await.unwrap().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let cluster_id = broker.cluster_id();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let served = runtime.spawn(async move {
            let listener = broker.bind().await?;
            let addresses = (listener.addresses(), listener.admin_addr());
            sender.send(addresses).unwrap();
            broker.serve(listener, token).await
        });
        let (addresses, admin) = receiver.await.unwrap();
        Self {
            address: addresses[0].1,
            addresses,
            admin,
            cluster_id,
            folder,
            stop,
            runtime: Some(runtime),
            served: Some(served),
        }
    }

    pub(crate) async fn connect(&self) -> Wire {
        Self::connect_to(self.address).await
    }

    pub(crate) async fn connect_to(address: SocketAddr) -> Wire {
        Wire::new(TcpStream::connect(address).await.unwrap())
    }

    /// The address of a listener.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        let found = self.addresses.iter().find(|(known, _)| known == name);
        found.unwrap().1
    }

    /// Asks the broker to stop without waiting for it.
    pub(crate) fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Stops the broker in order; the directory, for the next one.
    pub(crate) async fn stop(mut self) -> Arc<TempDir> {
        self.stop.cancel();
        timeout(PATIENCE, self.served.take().unwrap())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        Arc::clone(&self.folder)
    }

    /// How the broker ends by itself.
    pub(crate) async fn ended(mut self) -> Result<(), Error> {
        self.served.take().unwrap().await.unwrap()
    }

    /// Drops every task of the broker where it stands: no flush, no mark.
    pub(crate) async fn kill(mut self) -> Arc<TempDir> {
        let runtime = self.runtime.take().unwrap();
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE))
            .await
            .unwrap();
        Arc::clone(&self.folder)
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) fn config(folder: &Path, edit: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config {
        listen: "127.0.0.1:0".to_owned(),
        data_dir: folder.join("data"),
        ..Config::default()
    };
    edit(&mut config);
    config
}

/// One connection.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    correlation_id: i32,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            correlation_id: 0,
        }
    }

    /// Sends a request without a client id; whether that was possible.
    pub(crate) async fn try_send<R: Request>(&mut self, request: &R, version: i16) -> bool {
        self.correlation_id += 1;
        let mut out = BytesMut::new();
        frame::encode_request(&mut out, request, version, self.correlation_id, None).unwrap();
        self.stream.write_all(&out).await.is_ok()
    }

    pub(crate) async fn send<R: Request>(&mut self, request: &R, version: i16) -> i32 {
        self.correlation_id += 1;
        let client_id = ByteString::from_static("test");
        let mut out = BytesMut::new();
        let id = self.correlation_id;
        frame::encode_request(&mut out, request, version, id, Some(&client_id)).unwrap();
        self.raw(&out).await;
        id
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The next frame, without its length.
    pub(crate) async fn frame(&mut self) -> Bytes {
        let read = async {
            let length = self.stream.read_i32().await?;
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut bytes).await?;
            Ok::<_, std::io::Error>(bytes)
        };
        timeout(PATIENCE, read)
            .await
            .expect("an answer in time")
            .unwrap()
            .into()
    }

    /// Whether a frame comes before the connection ends.
    pub(crate) async fn try_frame(&mut self) -> bool {
        let length = timeout(PATIENCE, self.stream.read_i32()).await;
        length.expect("an answer or the end in time").is_ok()
    }

    pub(crate) async fn receive<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        frame::decode_response(self.frame().await, version).unwrap()
    }

    pub(crate) async fn call<R: Request>(&mut self, request: &R, version: i16) -> R::Response {
        let sent = self.send(request, version).await;
        let (id, response) = self.receive::<R>(version).await;
        assert_eq!(id, sent);
        response
    }

    /// Waits for the broker to close the connection without another byte.
    pub(crate) async fn assert_closed(&mut self) {
        let mut byte = [0];
        let read = timeout(PATIENCE, self.stream.read_exact(&mut byte)).await;
        assert!(
            read.expect("a closed connection in time").is_err(),
            "got a byte: {byte:?}"
        );
    }

    pub(crate) async fn create_topic(&mut self, name: &str, partitions: i32) {
        self.create_topic_with(name, partitions, &[]).await;
    }

    pub(crate) async fn create_topic_with(
        &mut self,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) {
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
        });
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: name.into(),
                num_partitions: partitions,
                replication_factor: 1,
                configs: configs.collect(),
                ..CreatableTopic::default()
            }],
            ..CreateTopicsRequest::default()
        };
        let response = self.call(&request, 7).await;
        let topic = &response.topics[0];
        assert_eq!(
            (topic.error_code, &topic.error_message),
            (0, &None),
            "{name}"
        );
    }

    /// Produces one batch to one partition with acks=1.
    pub(crate) async fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        records: Bytes,
    ) -> PartitionProduceResponse {
        let response = self
            .call(&produce_request(topic, partition, records), 9)
            .await;
        response.responses[0].partition_responses[0].clone()
    }

    /// Produces and expects success; the base offset.
    pub(crate) async fn append(&mut self, topic: &str, partition: i32, records: Bytes) -> i64 {
        let response = self.produce(topic, partition, records).await;
        assert_eq!((response.error_code, &response.error_message), (0, &None));
        response.base_offset
    }

    /// Fetches from one partition without waiting.
    pub(crate) async fn fetch(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> PartitionData {
        let response = self
            .call(&fetch_request(topic, partition, offset), 12)
            .await;
        only_partition(response)
    }

    /// The offset of a time, or of one of the special ones.
    pub(crate) async fn list_offset(
        &mut self,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        let request = ListOffsetsRequest {
            replica_id: -1,
            topics: vec![ListOffsetsTopic {
                name: topic.into(),
                partitions: vec![ListOffsetsPartition {
                    partition_index: partition,
                    timestamp,
                    ..ListOffsetsPartition::default()
                }],
            }],
            ..ListOffsetsRequest::default()
        };
        self.call(&request, 7).await.topics[0].partitions[0].clone()
    }
}

pub(crate) fn produce_request(topic: &str, partition: i32, records: Bytes) -> ProduceRequest {
    ProduceRequest {
        transactional_id: None,
        acks: 1,
        timeout_ms: 1000,
        topic_data: vec![TopicProduceData {
            name: topic.into(),
            partition_data: vec![PartitionProduceData {
                index: partition,
                records: Some(records),
            }],
            ..TopicProduceData::default()
        }],
    }
}

pub(crate) fn fetch_request(topic: &str, partition: i32, offset: i64) -> FetchRequest {
    FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        max_bytes: 50 << 20,
        topics: vec![fetch_topic(topic, &[(partition, offset)])],
        ..FetchRequest::default()
    }
}

pub(crate) fn fetch_topic(topic: &str, from: &[(i32, i64)]) -> FetchTopic {
    let partition = |&(partition, fetch_offset): &(i32, i64)| FetchPartition {
        partition,
        fetch_offset,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    FetchTopic {
        topic: topic.into(),
        partitions: from.iter().map(partition).collect(),
        ..FetchTopic::default()
    }
}

pub(crate) fn only_partition(mut response: FetchResponse) -> PartitionData {
    assert_eq!((response.error_code, response.session_id), (0, 0));
    assert_eq!(response.responses.len(), 1);
    let mut topic = response.responses.remove(0);
    assert_eq!(topic.partitions.len(), 1);
    topic.partitions.remove(0)
}

/// A batch of records with these values, stamped 1000, 1001, …
pub(crate) fn batch(values: &[&str]) -> Bytes {
    compressed(Compression::None, values)
}

pub(crate) fn compressed(compression: Compression, values: &[&str]) -> Bytes {
    fill(BatchBuilder::new(compression), values)
}

/// A batch of an idempotent producer.
pub(crate) fn sequenced(producer_id: i64, epoch: i16, sequence: i32, values: &[&str]) -> Bytes {
    let builder = BatchBuilder::new(Compression::None);
    fill(builder.with_producer(producer_id, epoch, sequence), values)
}

pub(crate) fn fill(mut builder: BatchBuilder, values: &[&str]) -> Bytes {
    for (timestamp, value) in (1000..).zip(values) {
        builder
            .push(timestamp, None, Some(value.as_bytes()), &[])
            .unwrap();
    }
    builder.build().unwrap()
}

/// Changes a batch and gives it the CRC that goes with the change.
pub(crate) fn edited(batch: &Bytes, edit: impl FnOnce(&mut [u8])) -> Bytes {
    let mut bytes = batch.to_vec();
    edit(&mut bytes);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

/// The batches of an answer, each with its CRC checked.
pub(crate) fn batches_of(data: &PartitionData) -> Vec<RecordBatch> {
    let records = data.records.clone().expect("records, perhaps empty");
    let records = records.into_bytes();
    let all: Result<Vec<_>, _> = batches(records).collect();
    let all = all.unwrap();
    for batch in &all {
        batch.check_crc().unwrap();
    }
    all
}

/// Offsets and values of the records of an answer.
pub(crate) fn values_of(data: &PartitionData) -> Vec<(i64, String)> {
    let mut values = Vec::new();
    for batch in batches_of(data) {
        for record in &batch.records(1 << 24).unwrap() {
            let record = record.unwrap();
            let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            values.push((record.offset, value));
        }
    }
    values
}

/// All records of a partition from its beginning, over as many answers as it takes.
pub(crate) async fn read_all(wire: &mut Wire, topic: &str, partition: i32) -> Vec<(i64, String)> {
    let mut read: Vec<(i64, String)> = Vec::new();
    loop {
        let offset = read.last().map_or(0, |(offset, _)| offset + 1);
        let data = wire.fetch(topic, partition, offset).await;
        if offset == data.high_watermark {
            return read;
        }
        let more = values_of(&data);
        assert!(
            !more.is_empty(),
            "nothing at {offset} of {}",
            data.high_watermark
        );
        read.extend(more);
    }
}

/// The name of a code from the wire.
pub(crate) fn name(code: i16) -> &'static str {
    ErrorCode::from_i16(code).name()
}
