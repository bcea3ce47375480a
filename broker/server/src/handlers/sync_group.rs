//! `SyncGroup` 0–5: a member's part of the assignment, which the leader hands in.
//!
//! As in Apache Kafka one that does not fit a record of `__consumer_offsets` fails for all members with
//! `UNKNOWN_SERVER_ERROR`, and the group begins a new generation.

use broker_protocol::{
    ErrorCode,
    messages::{SyncGroupRequest, SyncGroupResponse},
};

use super::Context;
use crate::group::{Caller, Sync, refused_sync};

pub(super) async fn handle(context: &Context<'_>, request: SyncGroupRequest) -> SyncGroupResponse {
    if request.group_id.is_empty() {
        return refused_sync(ErrorCode::InvalidGroupId);
    }
    let assignments = request.assignments.into_iter();
    let sync = Sync {
        caller: Caller {
            member_id: request.member_id,
            instance_id: request.group_instance_id,
            generation: request.generation_id,
        },
        protocol_type: request.protocol_type,
        protocol: request.protocol_name,
        assignments: assignments
            .map(|part| (part.member_id, part.assignment))
            .collect(),
    };
    context.broker.groups.sync(&request.group_id, sync).await
}
