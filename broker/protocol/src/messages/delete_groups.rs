//! `DeleteGroups` (key 42): deletes groups without members, and their offsets.

use super::prelude::*;

api! {
    DeleteGroups = 42, versions 0..=2, flexible 2.., DeleteGroupsRequest => DeleteGroupsResponse;

    /// Deletes groups.
    pub struct DeleteGroupsRequest {
        /// The groups.
        groups_names: Vec<ByteString> [..],
    }

    /// What became of each group.
    pub struct DeleteGroupsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..],
        /// The groups.
        results: Vec<DeletableGroupResult> [..],
    }

    /// One group of a [`DeleteGroupsResponse`].
    pub struct DeletableGroupResult {
        /// The group.
        group_id: ByteString [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
    }
}
