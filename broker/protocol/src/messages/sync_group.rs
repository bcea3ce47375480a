//! `SyncGroup` (key 14): the leader hands in the assignment, every member gets its part.

use super::prelude::*;

api! {
    SyncGroup = 14, versions 0..=5, flexible 4.., SyncGroupRequest => SyncGroupResponse;

    /// Asks for the member's assignment; the leader brings everybody's.
    pub struct SyncGroupRequest {
        /// The group.
        group_id: ByteString [..],
        /// Number of the generation.
        generation_id: i32 [..],
        /// The member.
        member_id: ByteString [..],
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [3..] nullable = None,
        /// What kind of group the member takes this for, null when it does not say.
        protocol_type: Option<ByteString> [5..] nullable ignorable = None,
        /// The protocol it takes for chosen, null when it does not say.
        protocol_name: Option<ByteString> [5..] nullable ignorable = None,
        /// The assignments, from the leader only.
        assignments: Vec<SyncGroupRequestAssignment> [..],
    }

    /// One assignment of a [`SyncGroupRequest`].
    pub struct SyncGroupRequestAssignment {
        /// The member.
        member_id: ByteString [..],
        /// Its part.
        assignment: Bytes [..],
    }

    /// The member's part.
    pub struct SyncGroupResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What kind of group this is.
        protocol_type: Option<ByteString> [5..] nullable ignorable = None,
        /// The protocol chosen.
        protocol_name: Option<ByteString> [5..] nullable ignorable = None,
        /// The assignment.
        assignment: Bytes [..],
    }
}
