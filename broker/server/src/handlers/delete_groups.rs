//! `DeleteGroups` 0–2: deletes groups without members, and their offsets.

use broker_protocol::{
    ErrorCode,
    messages::{DeleteGroupsRequest, DeleteGroupsResponse, delete_groups::DeletableGroupResult},
};

use super::Context;

pub(super) fn handle(context: &Context<'_>, request: DeleteGroupsRequest) -> DeleteGroupsResponse {
    let results = request.groups_names.into_iter().map(|group_id| {
        let deleted = context.broker.groups.delete(&group_id);
        DeletableGroupResult {
            error_code: deleted.err().unwrap_or(ErrorCode::None).code(),
            group_id,
        }
    });
    DeleteGroupsResponse {
        results: results.collect(),
        ..DeleteGroupsResponse::default()
    }
}
