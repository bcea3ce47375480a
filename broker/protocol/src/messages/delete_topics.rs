//! `DeleteTopics` (key 20).

use super::prelude::*;

api! {
    DeleteTopics = 20, versions 1..=6, flexible 4.., DeleteTopicsRequest => DeleteTopicsResponse;

    /// Deletes topics.
    pub struct DeleteTopicsRequest {
        /// The topics, by name or id.
        topics: Vec<DeleteTopicState> [6..],
        /// The topics, by name.
        topic_names: Vec<ByteString> [..=5] ignorable,
        /// How long to wait until they are gone, in milliseconds.
        timeout_ms: i32 [..],
    }

    /// A topic to delete.
    pub struct DeleteTopicState {
        /// Name of the topic, null when given by id.
        name: Option<ByteString> [6..] nullable = None,
        /// Id of the topic, zero when given by name.
        topic_id: Uuid [6..],
    }

    /// What became of each topic.
    pub struct DeleteTopicsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// The topics.
        responses: Vec<DeletableTopicResult> [..],
    }

    /// A topic that was deleted, or not.
    pub struct DeletableTopicResult {
        /// Name of the topic, null when given by an id that is unknown.
        name: Option<ByteString> [..] nullable(6..),
        /// Id of the topic.
        topic_id: Uuid [6..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [5..] nullable ignorable = None,
    }
}
