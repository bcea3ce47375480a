//! `LeaveGroup` (key 13): members leave a group. Up to version 2 one, then several.

use super::prelude::*;

api! {
    LeaveGroup = 13, versions 0..=5, flexible 4.., LeaveGroupRequest => LeaveGroupResponse;

    /// Leaves a group.
    pub struct LeaveGroupRequest {
        /// The group.
        group_id: ByteString [..],
        /// The member.
        member_id: ByteString [..=2],
        /// The members.
        members: Vec<MemberIdentity> [3..],
    }

    /// One member of a [`LeaveGroupRequest`].
    pub struct MemberIdentity {
        /// The member, empty when it is named by its static name.
        member_id: ByteString [3..],
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [3..] nullable = None,
        /// Why it leaves, in words.
        reason: Option<ByteString> [5..] nullable ignorable = None,
    }

    /// What became of each member.
    pub struct LeaveGroupResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// The members.
        members: Vec<MemberResponse> [3..],
    }

    /// One member of a [`LeaveGroupResponse`].
    pub struct MemberResponse {
        /// The member.
        member_id: ByteString [3..],
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [3..] nullable,
        /// Error code, 0 for none.
        error_code: i16 [3..],
    }
}
