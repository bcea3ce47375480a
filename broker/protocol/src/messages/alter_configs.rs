//! `AlterConfigs` (key 33): replaces all settings of topics and brokers.

use super::prelude::*;

api! {
    AlterConfigs = 33, versions 0..=2, flexible 2.., AlterConfigsRequest => AlterConfigsResponse;

    /// Gives resources new settings; those that are not named go back to their defaults.
    pub struct AlterConfigsRequest {
        /// The resources.
        resources: Vec<AlterConfigsResource> [..],
        /// Whether to check only, and change nothing.
        validate_only: bool [..],
    }

    /// All settings of one resource.
    pub struct AlterConfigsResource {
        /// Kind of resource: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group.
        resource_type: i8 [..],
        /// Name of the topic, or node id of the broker.
        resource_name: ByteString [..],
        /// The settings.
        configs: Vec<AlterableConfig> [..],
    }

    /// One setting.
    pub struct AlterableConfig {
        /// Its name.
        name: ByteString [..],
        /// Its value.
        value: Option<ByteString> [..] nullable,
    }

    /// What became of each resource.
    pub struct AlterConfigsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
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
