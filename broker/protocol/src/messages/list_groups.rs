//! `ListGroups` (key 16): the groups that this broker coordinates.

use super::prelude::*;

api! {
    ListGroups = 16, versions 0..=5, flexible 3.., ListGroupsRequest => ListGroupsResponse;

    /// Asks for groups.
    pub struct ListGroupsRequest {
        /// States of the groups wanted, empty for all.
        states_filter: Vec<ByteString> [4..],
        /// Types of the groups wanted, empty for all.
        types_filter: Vec<ByteString> [5..],
    }

    /// The groups.
    pub struct ListGroupsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// The groups.
        groups: Vec<ListedGroup> [..],
    }

    /// One group of a [`ListGroupsResponse`].
    pub struct ListedGroup {
        /// The group.
        group_id: ByteString [..],
        /// What kind of group this is, such as `consumer`.
        protocol_type: ByteString [..],
        /// Its state.
        group_state: ByteString [4..] ignorable,
        /// `classic` or `consumer`.
        group_type: ByteString [5..] ignorable,
    }
}
