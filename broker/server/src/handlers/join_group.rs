//! `JoinGroup` 0–9: becomes a member of a group. Answered when everybody has joined, or the time for it is up.
//!
//! From version 4 on a new member without a static name is first told its id (KIP-394). Deviations from Apache Kafka:
//! a client that leaves while it waits gives up its place in the rebalance (Kafka counts it as joined); a member's
//! protocols are bounded (`groups.max_member_bytes`), and so are the groups (`POLICY_VIOLATION`); a member with which its
//! group would not fit a record of `__consumer_offsets` is refused (`GROUP_MAX_SIZE_REACHED`; Kafka refuses all members,
//! at their sync).

use std::time::Duration;

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{JoinGroupRequest, JoinGroupResponse, join_group::JoinGroupRequestProtocol},
};
use bytes::Bytes;

use super::Context;
use crate::group::{Join, Profile, own, refused_join};

/// First version whose new members must know their id before they join.
const NEEDS_ID: i16 = 4;
/// First version in which no protocol is null, not empty.
const NULL_PROTOCOL: i16 = 7;
/// First version that can say "do not assign".
const SKIPS_ASSIGNMENT: i16 = 9;

pub(super) async fn handle(
    context: &Context<'_>,
    version: i16,
    client_id: Option<&ByteString>,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    let mut response = match check(context, &request) {
        Ok(()) => {
            let groups = &context.broker.groups;
            let join = join(context, version, client_id, &request);
            groups.join(&request.group_id, join).await
        }
        Err(code) => refused_join(code, request.member_id),
    };
    if version < NULL_PROTOCOL {
        response.protocol_name.get_or_insert_default();
    }
    response
}

fn check(context: &Context<'_>, request: &JoinGroupRequest) -> Result<(), ErrorCode> {
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let config = &context.broker.config.groups;
    let session = duration(request.session_timeout_ms);
    if !(config.min_session_timeout..=config.max_session_timeout).contains(&session) {
        return Err(ErrorCode::InvalidSessionTimeout);
    }
    let protocols = request.protocols.iter();
    let bytes: usize = protocols.map(|p| p.name.len() + p.metadata.len()).sum();
    if bytes as u64 > config.max_member_bytes.as_u64() {
        return Err(ErrorCode::InvalidRequest);
    }
    Ok(())
}

fn join(
    context: &Context<'_>,
    version: i16,
    client_id: Option<&ByteString>,
    request: &JoinGroupRequest,
) -> Join {
    let protocol = |protocol: &JoinGroupRequestProtocol| {
        let metadata = Bytes::copy_from_slice(&protocol.metadata);
        (own(&protocol.name), metadata)
    };
    let rebalance_timeout_ms = match request.rebalance_timeout_ms {
        timeout if timeout >= 0 => timeout,
        _ => request.session_timeout_ms,
    };
    Join {
        member_id: own(&request.member_id),
        protocol_type: own(&request.protocol_type),
        profile: Profile {
            instance_id: request.group_instance_id.as_ref().map(own),
            client_id: client_id.map(own).unwrap_or_default(),
            client_host: format!("/{}", context.peer.ip().to_canonical()).into(),
            session_timeout: duration(request.session_timeout_ms),
            rebalance_timeout: duration(rebalance_timeout_ms),
            protocols: request.protocols.iter().map(protocol).collect(),
        },
        needs_id: version >= NEEDS_ID,
        may_skip_assignment: version >= SKIPS_ASSIGNMENT,
    }
}

/// A time from the wire, where a negative one is none.
fn duration(ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
