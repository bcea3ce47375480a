//! `DescribeGroups` (key 15): state and members of groups.

use super::prelude::*;

api! {
    DescribeGroups = 15, versions 0..=6, flexible 5.., DescribeGroupsRequest => DescribeGroupsResponse;

    /// Asks for groups.
    pub struct DescribeGroupsRequest {
        /// The groups.
        groups: Vec<ByteString> [..],
        /// Whether to say what the client may do with each.
        include_authorized_operations: bool [3..],
    }

    /// The groups.
    pub struct DescribeGroupsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// The groups.
        groups: Vec<DescribedGroup> [..],
    }

    /// One group of a [`DescribeGroupsResponse`].
    pub struct DescribedGroup {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [6..] nullable = None,
        /// The group.
        group_id: ByteString [..],
        /// `Empty`, `PreparingRebalance`, `CompletingRebalance`, `Stable` or `Dead`.
        group_state: ByteString [..],
        /// What kind of group this is.
        protocol_type: ByteString [..],
        /// The protocol chosen, empty while none is.
        protocol_data: ByteString [..],
        /// The members.
        members: Vec<DescribedGroupMember> [..],
        /// Bits of Kafka's ACL operations.
        authorized_operations: i32 [3..] = i32::MIN,
    }

    /// One member of a [`DescribedGroup`].
    pub struct DescribedGroupMember {
        /// The member.
        member_id: ByteString [..],
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [4..] nullable ignorable = None,
        /// What its client calls itself.
        client_id: ByteString [..],
        /// Where it joined from.
        client_host: ByteString [..],
        /// Its metadata for the protocol chosen.
        member_metadata: Bytes [..],
        /// Its assignment.
        member_assignment: Bytes [..],
    }
}
