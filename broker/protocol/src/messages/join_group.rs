//! `JoinGroup` (key 11): becomes a member of a group, or stays one through a rebalance.

use super::prelude::*;

api! {
    JoinGroup = 11, versions 0..=9, flexible 6.., JoinGroupRequest => JoinGroupResponse;

    /// Joins a group.
    pub struct JoinGroupRequest {
        /// The group.
        group_id: ByteString [..],
        /// Time without a heartbeat after which the member is removed, in milliseconds.
        session_timeout_ms: i32 [..],
        /// Time the member has to join again in a rebalance, in milliseconds; −1 for the session timeout.
        rebalance_timeout_ms: i32 [1..] ignorable = -1,
        /// The member, empty for a new one.
        member_id: ByteString [..],
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [5..] nullable = None,
        /// What kind of group this is, such as `consumer`.
        protocol_type: ByteString [..],
        /// Ways to assign that the member knows, the dearest first.
        protocols: Vec<JoinGroupRequestProtocol> [..],
        /// Why it joins, in words.
        reason: Option<ByteString> [8..] nullable ignorable = None,
    }

    /// One protocol of a [`JoinGroupRequest`].
    pub struct JoinGroupRequestProtocol {
        /// Its name, such as `range`.
        name: ByteString [..],
        /// What the leader needs to know of the member, such as its subscription.
        metadata: Bytes [..],
    }

    /// The generation that the member is part of.
    pub struct JoinGroupResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [2..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Number of the generation.
        generation_id: i32 [..] = -1,
        /// What kind of group this is.
        protocol_type: Option<ByteString> [7..] nullable ignorable = None,
        /// The protocol chosen.
        protocol_name: Option<ByteString> [..] nullable(7..),
        /// The member that assigns.
        leader: ByteString [..],
        /// Whether the leader must not assign, because the assignment stands.
        skip_assignment: bool [9..],
        /// The member itself.
        member_id: ByteString [..],
        /// All members, for the leader only.
        members: Vec<JoinGroupResponseMember> [..],
    }

    /// One member of a [`JoinGroupResponse`].
    pub struct JoinGroupResponseMember {
        /// The member.
        member_id: ByteString [..],
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [5..] nullable ignorable = None,
        /// Its metadata for the protocol chosen.
        metadata: Bytes [..],
    }
}
