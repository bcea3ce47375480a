//! `FindCoordinator` (key 10): which broker keeps a group's offsets or a transaction.

use super::prelude::*;

api! {
    FindCoordinator = 10, versions 0..=6, flexible 3..,
    FindCoordinatorRequest => FindCoordinatorResponse;

    /// Asks for the coordinator of one group or transactional id, from version 4 on of several.
    pub struct FindCoordinatorRequest {
        /// The group or transactional id.
        key: ByteString [..=3],
        /// 0 for groups, 1 for transactions, 2 for share groups.
        key_type: i8 [1..],
        /// The groups or transactional ids.
        coordinator_keys: Vec<ByteString> [4..],
    }

    /// The coordinator, or coordinators.
    pub struct FindCoordinatorResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..=3],
        /// What was wrong, in words.
        error_message: Option<ByteString> [1..=3] nullable ignorable,
        /// Node id of the coordinator.
        node_id: i32 [..=3],
        /// Its host name.
        host: ByteString [..=3],
        /// Its TCP port.
        port: i32 [..=3],
        /// One for each key.
        coordinators: Vec<Coordinator> [4..],
    }

    /// A coordinator.
    pub struct Coordinator {
        /// The group or transactional id.
        key: ByteString [4..],
        /// Node id of the coordinator.
        node_id: i32 [4..],
        /// Its host name.
        host: ByteString [4..],
        /// Its TCP port.
        port: i32 [4..],
        /// Error code, 0 for none.
        error_code: i16 [4..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [4..] nullable ignorable,
    }
}
