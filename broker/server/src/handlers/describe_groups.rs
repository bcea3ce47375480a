//! `DescribeGroups` 0–6: state and members of groups. One that does not exist is `Dead`, from version 6 on an error.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{DescribeGroupsRequest, DescribeGroupsResponse, describe_groups::DescribedGroup},
};

use super::{Context, group_operations};

/// First version in which a group that is not there is an error.
const ABSENCE_IS_AN_ERROR: i16 = 6;

pub(super) fn handle(
    context: &Context<'_>,
    version: i16,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let operations = match request.include_authorized_operations {
        true => group_operations(),
        false => i32::MIN,
    };
    let groups = request.groups.into_iter().map(|group_id| DescribedGroup {
        authorized_operations: operations,
        ..describe(context, version, group_id)
    });
    DescribeGroupsResponse {
        groups: groups.collect(),
        ..DescribeGroupsResponse::default()
    }
}

fn describe(context: &Context<'_>, version: i16, group_id: ByteString) -> DescribedGroup {
    let described = context.broker.groups.describe(&group_id);
    let absent = DescribedGroup {
        group_id,
        ..DescribedGroup::default()
    };
    match described {
        Ok(Some(group)) => DescribedGroup {
            group_state: ByteString::from_static(group.state),
            protocol_type: group.protocol_type,
            protocol_data: group.protocol,
            members: group.members,
            ..absent
        },
        Ok(None) if version >= ABSENCE_IS_AN_ERROR => DescribedGroup {
            error_code: ErrorCode::GroupIdNotFound.code(),
            error_message: Some(ByteString::from_static("there is no such group")),
            group_state: ByteString::from_static("Dead"),
            ..absent
        },
        Ok(None) => DescribedGroup {
            group_state: ByteString::from_static("Dead"),
            ..absent
        },
        Err(code) => DescribedGroup {
            error_code: code.code(),
            ..absent
        },
    }
}
