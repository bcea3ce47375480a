//! `Heartbeat` (key 12): a member says that it lives, and learns of rebalances.

use super::prelude::*;

api! {
    Heartbeat = 12, versions 0..=4, flexible 4.., HeartbeatRequest => HeartbeatResponse;

    /// A sign of life.
    pub struct HeartbeatRequest {
        /// The group.
        group_id: ByteString [..],
        /// Number of the generation.
        generation_id: i32 [..],
        /// The member.
        member_id: ByteString [..],
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [3..] nullable = None,
    }

    /// Whether the generation stands.
    pub struct HeartbeatResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
    }
}
