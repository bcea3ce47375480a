//! `LeaveGroup` 0–5: members leave, up to version 2 one, then several, by id or static name.

use broker_protocol::{
    ErrorCode,
    messages::{
        LeaveGroupRequest, LeaveGroupResponse,
        leave_group::{MemberIdentity, MemberResponse},
    },
};

use super::Context;

/// First version that names several.
const SEVERAL: i16 = 3;

pub(super) fn handle(
    context: &Context<'_>,
    version: i16,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    let members = if version < SEVERAL {
        vec![MemberIdentity {
            member_id: request.member_id,
            ..MemberIdentity::default()
        }]
    } else {
        request.members
    };
    let left = match request.group_id.is_empty() {
        true => Err(ErrorCode::InvalidGroupId),
        false => context.broker.groups.leave(&request.group_id, &members),
    };
    let codes = match left {
        Ok(codes) => codes,
        // Of a group that is not there nobody is a member; anything else concerns the request as a whole.
        Err(ErrorCode::UnknownMemberId) => vec![ErrorCode::UnknownMemberId; members.len()],
        Err(code) => return respond(code, Vec::new()),
    };
    if version < SEVERAL {
        return respond(
            codes.first().copied().unwrap_or(ErrorCode::None),
            Vec::new(),
        );
    }
    let answers = members
        .into_iter()
        .zip(codes)
        .map(|(member, code)| MemberResponse {
            member_id: member.member_id,
            group_instance_id: member.group_instance_id,
            error_code: code.code(),
        });
    respond(ErrorCode::None, answers.collect())
}

fn respond(code: ErrorCode, members: Vec<MemberResponse>) -> LeaveGroupResponse {
    LeaveGroupResponse {
        error_code: code.code(),
        members,
        ..LeaveGroupResponse::default()
    }
}
