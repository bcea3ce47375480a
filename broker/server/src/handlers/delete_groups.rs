//! `DeleteGroups` 0–2: deletes groups without members, and their offsets.

use broker_protocol::{
    ErrorCode,
    messages::{DeleteGroupsRequest, DeleteGroupsResponse, delete_groups::DeletableGroupResult},
};

use super::Context;

pub(super) async fn handle(
    context: &Context<'_>,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    for group_id in request.groups_names {
        let deleted = context.broker.groups.delete(&group_id).await;
        results.push(DeletableGroupResult {
            error_code: deleted.err().unwrap_or(ErrorCode::None).code(),
            group_id,
        });
    }
    DeleteGroupsResponse {
        results,
        ..DeleteGroupsResponse::default()
    }
}
