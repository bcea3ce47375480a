//! `IncrementalAlterConfigs` (key 44): changes single settings of topics and brokers (KIP-339).

use super::prelude::*;

api! {
    IncrementalAlterConfigs = 44, versions 0..=1, flexible 1..,
    IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse;

    /// Changes settings of resources; those that are not named stay.
    pub struct IncrementalAlterConfigsRequest {
        /// The resources.
        resources: Vec<AlterConfigsResource> [..],
        /// Whether to check only, and change nothing.
        validate_only: bool [..],
    }

    /// The changes of one resource.
    pub struct AlterConfigsResource {
        /// Kind of resource: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group.
        resource_type: i8 [..],
        /// Name of the topic, or node id of the broker.
        resource_name: ByteString [..],
        /// The changes.
        configs: Vec<AlterableConfig> [..],
    }

    /// One change.
    pub struct AlterableConfig {
        /// Name of the setting.
        name: ByteString [..],
        /// What to do: 0 set, 1 delete, 2 append to a list, 3 subtract from a list.
        config_operation: i8 [..],
        /// The value, or the words to append or subtract.
        value: Option<ByteString> [..] nullable,
    }

    /// What became of each resource.
    pub struct IncrementalAlterConfigsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..],
        /// The resources.
        responses: Vec<AlterConfigsResourceResponse> [..],
    }

    /// What became of one resource.
    pub struct AlterConfigsResourceResponse {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong.
        error_message: Option<ByteString> [..] nullable,
        /// As in the request.
        resource_type: i8 [..],
        /// As in the request.
        resource_name: ByteString [..],
    }
}
