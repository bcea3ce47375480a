//! One file per API, named as its messages; here the table of what is served, and the way from a frame to
//! the handler and back.
//!
//! A handler gets a decoded request and gives the response; codes of single topics and partitions are in it.
//! What cannot be answered (bytes that are no request, an API or version that is not served) closes the
//! connection, as Apache Kafka does; clients learn the table from `ApiVersions` first.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use broker_log::LogSlice;
use broker_protocol::{
    DecodeError, EncodeError,
    frame::{self, RequestHeader},
    messages::{ApiKey, Message},
};
use bytes::{Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{error, trace};

use crate::{
    broker::Shared,
    config,
    security::{Principal, Session, config::ListenerConfig},
};

mod alter_configs;
mod alter_partition_reassignments;
mod api_versions;
mod create_partitions;
mod create_topics;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_cluster;
mod describe_configs;
mod describe_groups;
mod describe_log_dirs;
mod describe_producers;
mod describe_topic_partitions;
mod elect_leaders;
mod fetch;
mod find_coordinator;
mod heartbeat;
mod incremental_alter_configs;
mod init_producer_id;
mod join_group;
mod leave_group;
mod list_groups;
mod list_offsets;
mod list_partition_reassignments;
mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
mod produce;
mod sasl_authenticate;
mod sasl_handshake;
mod sync_group;
mod timestamps;

/// One row of the table of served versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
    /// The API.
    pub(crate) api: ApiKey,
    /// Lowest version that is answered.
    pub(crate) min: i16,
    /// Highest version that is answered.
    pub(crate) max: i16,
}

const fn served(api: ApiKey, min: i16, max: i16) -> Served {
    Served { api, min, max }
}

/// What `ApiVersions` offers and [`dispatch`] answers. Produce below 3 is offered because clients choose codecs by
/// the minimum, and answered with an error.
pub(crate) const SERVED: &[Served] = &[
    served(ApiKey::Produce, 0, produce::MAX_VERSION),
    served(ApiKey::Fetch, 4, 18),
    served(ApiKey::ListOffsets, 1, 10),
    served(ApiKey::Metadata, 0, 13),
    served(ApiKey::OffsetCommit, 2, 9),
    served(ApiKey::OffsetFetch, 1, 9),
    served(ApiKey::FindCoordinator, 0, 4),
    served(ApiKey::JoinGroup, 0, 9),
    served(ApiKey::Heartbeat, 0, 4),
    served(ApiKey::LeaveGroup, 0, 5),
    served(ApiKey::SyncGroup, 0, 5),
    served(ApiKey::DescribeGroups, 0, 6),
    served(ApiKey::ListGroups, 0, 5),
    served(ApiKey::SaslHandshake, 0, 1),
    served(ApiKey::ApiVersions, 0, 4),
    served(ApiKey::CreateTopics, 2, 7),
    served(ApiKey::DeleteTopics, 1, 6),
    served(ApiKey::DeleteRecords, 0, 2),
    served(ApiKey::InitProducerId, 0, 4),
    served(ApiKey::OffsetForLeaderEpoch, 2, 4),
    served(ApiKey::DescribeConfigs, 1, 4),
    served(ApiKey::AlterConfigs, 0, 2),
    served(ApiKey::DescribeLogDirs, 1, 4),
    served(ApiKey::SaslAuthenticate, 0, 2),
    served(ApiKey::CreatePartitions, 0, 3),
    served(ApiKey::DeleteGroups, 0, 2),
    served(ApiKey::ElectLeaders, 0, 2),
    served(ApiKey::IncrementalAlterConfigs, 0, 1),
    served(ApiKey::AlterPartitionReassignments, 0, 1),
    served(ApiKey::ListPartitionReassignments, 0, 0),
    served(ApiKey::OffsetDelete, 0, 0),
    served(ApiKey::DescribeCluster, 0, 2),
    served(ApiKey::DescribeProducers, 0, 0),
    served(ApiKey::DescribeTopicPartitions, 0, 0),
];

/// Where a request comes from and what it may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// What all connections share.
    pub(crate) broker: &'a Arc<Shared>,
    /// Cancelled when the broker stops: whoever waits answers with what there is.
    pub(crate) stop: &'a CancellationToken,
    /// The listener that the client came by.
    pub(crate) listener: &'a ListenerConfig,
    /// Who the client is.
    pub(crate) principal: &'a Principal,
    /// The address of this broker that the client reached.
    pub(crate) local: SocketAddr,
    /// The client's address.
    pub(crate) peer: SocketAddr,
}

impl Context<'_> {
    /// The host and port that this client is told to connect to: those of the listener that it came by.
    fn advertised(&self) -> (String, i32) {
        let configured = self
            .listener
            .advertised
            .as_deref()
            .and_then(config::host_and_port);
        configured.map_or_else(
            || {
                (
                    self.local.ip().to_canonical().to_string(),
                    i32::from(self.local.port()),
                )
            },
            |(host, port)| (host.to_owned(), i32::from(port)),
        )
    }
}

/// An answer as it goes over the wire.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Length, header and message, but for what is in `files`.
    pub(crate) frame: BytesMut,
    /// Bytes of files, and before which byte of the frame they belong; in their order.
    pub(crate) files: Vec<(usize, LogSlice)>,
    /// Kept until the frame has been written.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// Kafka's numbers of the errors in it.
    pub(crate) errors: Vec<i16>,
}

impl Reply {
    /// One that is all in `frame`.
    fn whole(frame: BytesMut, errors: Vec<i16>) -> Self {
        Self {
            frame,
            files: Vec::new(),
            permit: None,
            errors,
        }
    }

    /// Bytes on the wire.
    pub(crate) fn len(&self) -> usize {
        let files = self.files.iter().map(|(_, slice)| slice.len());
        self.frame.len() + files.sum::<usize>()
    }
}

/// Why a request is not answered and its connection closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// Not a request, or not one of its version.
    #[error("bytes that are no request")]
    Malformed(#[from] DecodeError),
    /// Not in the table.
    #[error("{} version {version} is not served", api.name())]
    NotServed { api: ApiKey, version: i16 },
    /// A produce request without acknowledgement failed; closing is the only way to say so.
    #[error("a produce request that wants no answer failed: {reason}")]
    Unacknowledged { reason: String },
    /// Nothing but the authentication is answered before it.
    #[error("{} before authentication", api.name())]
    Unauthenticated { api: ApiKey },
    /// An answer that does not fit its version: a mistake in a handler.
    #[error("the answer could not be encoded")]
    Unencodable(#[from] EncodeError),
}

/// Decodes one request, runs its handler, encodes the answer. `None` for a produce request that wants none.
///
/// Dropping the future is safe between requests' effects: an append or a change of topics that has begun is
/// completed, its answer is lost.
async fn dispatch(context: &Context<'_>, body: Bytes) -> Result<Option<Reply>, Refused> {
    let begun = Instant::now();
    let mut counted = Counted::begin(context, &body);
    let answered = dispatch_counted(context, body, &mut counted).await;
    counted.end_with(
        context,
        answered.as_ref().map(Option::as_ref),
        begun.elapsed(),
    );
    answered
}

/// Whether a request is to produce, and may be handled together with those before and behind it.
pub(crate) fn is_produce(body: &[u8]) -> bool {
    let Some(&[k0, k1, v0, v1]) = body.first_chunk() else {
        return false;
    };
    i16::from_be_bytes([k0, k1]) == ApiKey::Produce.code()
        && (produce::MIN_VERSION..=produce::MAX_VERSION).contains(&i16::from_be_bytes([v0, v1]))
}

/// What one or several requests are answered.
#[derive(Debug)]
pub(crate) struct Answers {
    /// The answers, one behind the other. `None` if no request wanted one.
    pub(crate) reply: Option<Reply>,
    /// Why the request behind them is not answered.
    pub(crate) refused: Option<Refused>,
}

/// [`dispatch`] for one request, or for several of one connection that came one behind the other and all of which
/// [`is_produce`]: their batches are written together.
pub(crate) async fn dispatch_all(context: &Context<'_>, mut bodies: Vec<Bytes>) -> Answers {
    let Some(body) = bodies.pop_if(|body| !is_produce(body)) else {
        return dispatch_produce(context, bodies).await;
    };
    match dispatch(context, body).await {
        Ok(reply) => Answers {
            reply,
            refused: None,
        },
        Err(refused) => Answers {
            reply: None,
            refused: Some(refused),
        },
    }
}

async fn dispatch_produce(context: &Context<'_>, bodies: Vec<Bytes>) -> Answers {
    let begun = Instant::now();
    let mut headers = Vec::with_capacity(bodies.len());
    let mut requests = Vec::with_capacity(bodies.len());
    let mut malformed = None;
    for mut body in bodies {
        let mut counted = Counted::begin(context, &body);
        let decoded = read_header(context, &mut body).and_then(|(header, api)| {
            counted.api = Some(api);
            let request = Message::decode(&mut body, header.api_version)?;
            Ok((header, request))
        });
        match decoded {
            Ok((header, request)) => {
                requests.push((header.api_version, request));
                headers.push((header, counted));
            }
            Err(refused) => {
                malformed = Some((counted, refused));
                break;
            }
        }
    }
    let responses = produce::handle(context, requests).await;
    let taken = begun.elapsed();
    let mut frame = BytesMut::new();
    let mut refused = None;
    for ((header, counted), response) in headers.into_iter().zip(responses) {
        let before = frame.len();
        let encoded = response.and_then(|response| match response {
            Some(response) => Ok(encode(&mut frame, &response, header.api_version, &header)?),
            None => Ok(Vec::new()),
        });
        match encoded {
            Ok(errors) => counted.end(context, frame.len() - before, &errors, taken),
            Err(error) => {
                counted.refused(context);
                refused.get_or_insert(error);
                break;
            }
        }
    }
    if let Some((counted, error)) = malformed {
        counted.refused(context);
        refused.get_or_insert(error);
    }
    Answers::new(frame, refused)
}

impl Answers {
    fn new(frame: BytesMut, refused: Option<Refused>) -> Self {
        let reply = Reply::whole(frame, Vec::new());
        Self {
            reply: Some(reply).filter(|reply| reply.len() > 0),
            refused,
        }
    }
}

/// What is counted of a request.
struct Counted {
    api: Option<ApiKey>,
}

impl Counted {
    fn begin(context: &Context<'_>, body: &Bytes) -> Self {
        let bytes = body.len() + frame::PREFIX_LEN;
        context.broker.metrics.bytes_in.inc_by(bytes as u64);
        Self { api: None }
    }

    /// It has been answered with so many bytes and with these errors in them.
    fn end(self, context: &Context<'_>, bytes: usize, errors: &[i16], taken: Duration) {
        let metrics = &context.broker.metrics;
        let Some(api) = self.api else { return };
        if let Some(of_api) = metrics.api(api) {
            of_api.requests.inc();
            of_api.seconds.observe(taken.as_secs_f64());
        }
        metrics.bytes_out.inc_by(bytes as u64);
        metrics.count_errors(api, errors);
    }

    fn refused(self, context: &Context<'_>) {
        context.broker.metrics.refused.inc();
    }

    fn end_with(
        self,
        context: &Context<'_>,
        answered: Result<Option<&Reply>, &Refused>,
        taken: Duration,
    ) {
        match answered {
            Ok(Some(reply)) => self.end(context, reply.len(), &reply.errors, taken),
            Ok(None) => self.end(context, 0, &[], taken),
            Err(_) => self.refused(context),
        }
    }
}

async fn dispatch_counted(
    context: &Context<'_>,
    mut body: Bytes,
    counted: &mut Counted,
) -> Result<Option<Reply>, Refused> {
    let (header, api) = read_header(context, &mut body)?;
    counted.api = Some(api);
    let version = header.api_version;
    if let Some(reply) = too_new(api, &header)? {
        return Ok(Some(reply));
    }
    if api == ApiKey::Produce && version < produce::MIN_VERSION {
        return produce::refuse_old(body, &header);
    }
    call(context, api, &header, body).await
}

/// Runs the handler of an API that is served in this version.
async fn call(
    context: &Context<'_>,
    api: ApiKey,
    header: &RequestHeader,
    mut body: Bytes,
) -> Result<Option<Reply>, Refused> {
    let version = header.api_version;
    /// Decodes, calls, encodes.
    macro_rules! answer {
        ($module:ident::$handler:ident($($argument:expr),*)$(.$await:tt)?) => {{
            let request = Message::decode(&mut body, version)?;
            let response = $module::$handler($($argument,)* request)$(.$await)?;
            answered(&response, version, header)
        }};
    }
    match api {
        ApiKey::Fetch => {
            let request = Message::decode(&mut body, version)?;
            let mut fetched = fetch::handle(context, version, request).await;
            let frame = BytesMut::with_capacity(fetch::size_of(&fetched.response));
            let mut reply = reply_into(frame, &fetched.response, version, header)?;
            reply.files = fetched.files();
            let missing = reply.files.iter().map(|(_, slice)| slice.len()).sum();
            frame::lengthen(&mut reply.frame, missing)?;
            reply.permit = fetched.permit;
            Ok(Some(reply))
        }
        ApiKey::ListOffsets => answer!(list_offsets::handle(context, version).await),
        ApiKey::Metadata => answer!(metadata::handle(context, version).await),
        ApiKey::ApiVersions => answer!(api_versions::handle(version)),
        ApiKey::FindCoordinator => answer!(find_coordinator::handle(context, version)),
        ApiKey::OffsetCommit => answer!(offset_commit::handle(context).await),
        ApiKey::OffsetFetch => answer!(offset_fetch::handle(context, version)),
        ApiKey::JoinGroup => {
            let client_id = header.client_id.as_ref();
            answer!(join_group::handle(context, version, client_id).await)
        }
        ApiKey::Heartbeat => answer!(heartbeat::handle(context)),
        ApiKey::LeaveGroup => answer!(leave_group::handle(context, version)),
        ApiKey::SyncGroup => answer!(sync_group::handle(context).await),
        ApiKey::DescribeGroups => answer!(describe_groups::handle(context, version)),
        ApiKey::ListGroups => answer!(list_groups::handle(context)),
        ApiKey::DeleteGroups => answer!(delete_groups::handle(context).await),
        ApiKey::OffsetDelete => answer!(offset_delete::handle(context).await),
        ApiKey::SaslHandshake => answered(&sasl_handshake::too_late(), version, header),
        ApiKey::SaslAuthenticate => answered(&sasl_authenticate::too_late(), version, header),
        ApiKey::CreateTopics => answer!(create_topics::handle(context).await),
        ApiKey::DeleteTopics => answer!(delete_topics::handle(context, version).await),
        ApiKey::DeleteRecords => answer!(delete_records::handle(context).await),
        ApiKey::InitProducerId => answer!(init_producer_id::handle(context).await),
        ApiKey::OffsetForLeaderEpoch => answer!(offset_for_leader_epoch::handle(context)),
        ApiKey::DescribeConfigs => answer!(describe_configs::handle(context)),
        ApiKey::AlterConfigs => answer!(alter_configs::handle(context).await),
        ApiKey::DescribeLogDirs => answer!(describe_log_dirs::handle(context).await),
        ApiKey::CreatePartitions => answer!(create_partitions::handle(context).await),
        ApiKey::ElectLeaders => answer!(elect_leaders::handle(context)),
        ApiKey::IncrementalAlterConfigs => {
            answer!(incremental_alter_configs::handle(context).await)
        }
        ApiKey::AlterPartitionReassignments => {
            answer!(alter_partition_reassignments::handle(context))
        }
        ApiKey::ListPartitionReassignments => {
            let request = Message::decode(&mut body, version)?;
            let response = list_partition_reassignments::handle(&request);
            answered(&response, version, header)
        }
        ApiKey::DescribeProducers => answer!(describe_producers::handle(context)),
        ApiKey::DescribeTopicPartitions => answer!(describe_topic_partitions::handle(context)),
        ApiKey::DescribeCluster => {
            let request = Message::decode(&mut body, version)?;
            let response = describe_cluster::handle(context, &request);
            answered(&response, version, header)
        }
        // Produce is not for one request alone: see `dispatch_produce`.
        ApiKey::Produce | _ => Err(Refused::NotServed { api, version }),
    }
}

fn answered<M: Message>(
    response: &M,
    version: i16,
    header: &RequestHeader,
) -> Result<Option<Reply>, Refused> {
    Ok(Some(reply(response, version, header)?))
}

/// Answers one request of a client that has yet to authenticate; `session` says how far it has come.
pub(crate) fn authenticate(
    context: &Context<'_>,
    session: &mut Session,
    body: Bytes,
) -> Result<Reply, Refused> {
    let begun = Instant::now();
    let mut counted = Counted::begin(context, &body);
    let answered = authenticate_counted(context, session, body, &mut counted);
    counted.end_with(context, answered.as_ref().map(Some), begun.elapsed());
    answered
}

fn authenticate_counted(
    context: &Context<'_>,
    session: &mut Session,
    mut body: Bytes,
    counted: &mut Counted,
) -> Result<Reply, Refused> {
    let (header, api) = read_header(context, &mut body)?;
    counted.api = Some(api);
    let version = header.api_version;
    if let Some(reply) = too_new(api, &header)? {
        return Ok(reply);
    }
    if api == ApiKey::ApiVersions {
        let response = api_versions::handle(version, Message::decode(&mut body, version)?);
        return Ok(reply(&response, version, &header)?);
    }
    if api == ApiKey::SaslHandshake {
        let request = Message::decode(&mut body, version)?;
        let response = sasl_handshake::handle(context, session, version, &request);
        return Ok(reply(&response, version, &header)?);
    }
    if api == ApiKey::SaslAuthenticate {
        let request = Message::decode(&mut body, version)?;
        let response = sasl_authenticate::handle(context, session, &request);
        return Ok(reply(&response, version, &header)?);
    }
    Err(Refused::Unauthenticated { api })
}

/// The header of a request, and which of the served APIs it is for.
fn read_header(
    context: &Context<'_>,
    body: &mut Bytes,
) -> Result<(RequestHeader, ApiKey), Refused> {
    let header = RequestHeader::decode(body)?;
    let version = header.api_version;
    let row = SERVED.iter().find(|row| row.api.code() == header.api_key);
    let Some(&Served { api, min, max }) = row else {
        let api = ApiKey::from_i16(header.api_key).unwrap_or(ApiKey::ApiVersions);
        return Err(Refused::NotServed { api, version });
    };
    trace!(
        peer = %context.peer,
        principal = %context.principal,
        api = api.name(),
        version,
        client_id = ?header.client_id,
        "request"
    );
    if !(min..=max).contains(&version) && api != ApiKey::ApiVersions {
        return Err(Refused::NotServed { api, version });
    }
    Ok((header, api))
}

/// The answer to an `ApiVersions` request above the table.
fn too_new(api: ApiKey, header: &RequestHeader) -> Result<Option<Reply>, EncodeError> {
    let known = SERVED
        .iter()
        .any(|row| row.api == api && (row.min..=row.max).contains(&header.api_version));
    if known {
        return Ok(None);
    }
    reply(&api_versions::too_new(), 0, header).map(Some)
}

fn reply<M: Message>(
    response: &M,
    version: i16,
    header: &RequestHeader,
) -> Result<Reply, EncodeError> {
    reply_into(BytesMut::new(), response, version, header)
}

fn reply_into<M: Message>(
    mut frame: BytesMut,
    response: &M,
    version: i16,
    header: &RequestHeader,
) -> Result<Reply, EncodeError> {
    let errors = encode(&mut frame, response, version, header)?;
    Ok(Reply::whole(frame, errors))
}

/// Appends an answer; the errors in it.
fn encode<M: Message>(
    out: &mut BytesMut,
    response: &M,
    version: i16,
    header: &RequestHeader,
) -> Result<Vec<i16>, EncodeError> {
    frame::encode_response(out, response, version, header.correlation_id)
        .inspect_err(|error| error!(message = M::NAME, version, %error, "answer not encoded"))?;
    let mut errors = Vec::new();
    response.error_codes(&mut |code| {
        if code != 0 {
            errors.push(code);
        }
    });
    Ok(errors)
}

/// Bits of what a client may do, where nothing is forbidden: Kafka's ACL operations of the resource.
fn operations(allowed: &[u32]) -> i32 {
    allowed
        .iter()
        .fold(0, |bits, operation| bits | (1 << operation))
}

/// ACL operations on a topic: read, write, create, delete, alter, describe, describe and alter configs.
fn topic_operations() -> i32 {
    operations(&[3, 4, 5, 6, 7, 8, 10, 11])
}

/// ACL operations on a group: read, delete, describe.
fn group_operations() -> i32 {
    operations(&[3, 6, 8])
}

/// ACL operations on a cluster: create, alter, describe, cluster action, describe and alter configs,
/// idempotent write.
fn cluster_operations() -> i32 {
    operations(&[5, 7, 8, 9, 10, 11, 12])
}

#[cfg(test)]
mod tests {
    use broker_protocol::messages::TABLE;

    use super::*;

    #[test]
    fn the_table_is_sorted_and_lies_within_what_the_codec_knows() {
        assert!(SERVED.is_sorted_by_key(|row| row.api));
        for row in SERVED {
            let (_, min, max, _) = TABLE.iter().find(|known| known.0 == row.api).unwrap();
            let lowest = if row.api == ApiKey::Produce {
                produce::MIN_VERSION
            } else {
                row.min
            };
            assert!(
                *min <= lowest && row.max <= *max && row.min <= row.max,
                "{row:?}"
            );
        }
    }
}
