//! `Heartbeat` 0–4: a member's sign of life, and how it learns of a rebalance.

use broker_protocol::{
    ErrorCode,
    messages::{HeartbeatRequest, HeartbeatResponse},
};

use super::Context;
use crate::group::Caller;

pub(super) fn handle(context: &Context<'_>, request: HeartbeatRequest) -> HeartbeatResponse {
    let caller = Caller {
        member_id: request.member_id,
        instance_id: request.group_instance_id,
        generation: request.generation_id,
    };
    let beaten = match request.group_id.is_empty() {
        true => Err(ErrorCode::InvalidGroupId),
        false => context.broker.groups.heartbeat(&request.group_id, &caller),
    };
    HeartbeatResponse {
        error_code: beaten.err().unwrap_or(ErrorCode::None).code(),
        ..HeartbeatResponse::default()
    }
}
