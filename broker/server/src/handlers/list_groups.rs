//! `ListGroups` 0–5: all groups, or those in given states and of given types; all here are of type `classic`.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{ListGroupsRequest, ListGroupsResponse},
};

use super::Context;

pub(super) fn handle(context: &Context<'_>, request: ListGroupsRequest) -> ListGroupsResponse {
    let groups = match context.broker.groups.list() {
        Ok(groups) => groups,
        Err(code) => {
            return ListGroupsResponse {
                error_code: code.code(),
                ..ListGroupsResponse::default()
            };
        }
    };
    let ListGroupsRequest {
        states_filter,
        types_filter,
    } = request;
    let wanted = |filter: &[ByteString], value: &str| {
        filter.is_empty() || filter.iter().any(|word| word.eq_ignore_ascii_case(value))
    };
    let groups = groups.into_iter().filter(|group| {
        wanted(&states_filter, &group.group_state) && wanted(&types_filter, &group.group_type)
    });
    ListGroupsResponse {
        error_code: ErrorCode::None.code(),
        groups: groups.collect(),
        ..ListGroupsResponse::default()
    }
}
