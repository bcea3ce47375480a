//! `DescribeConfigs` (key 32): reads the configuration of topics and brokers.

use super::prelude::*;

api! {
    DescribeConfigs = 32, versions 1..=4, flexible 4..,
    DescribeConfigsRequest => DescribeConfigsResponse;

    /// Asks for the configuration of several resources.
    pub struct DescribeConfigsRequest {
        /// The resources.
        resources: Vec<DescribeConfigsResource> [..],
        /// Whether to list the values that others override.
        include_synonyms: bool [1..],
        /// Whether to explain each entry.
        include_documentation: bool [3..],
    }

    /// A resource.
    pub struct DescribeConfigsResource {
        /// 2 for topics, 4 for brokers, 8 for brokers' loggers.
        resource_type: i8 [..],
        /// Name of the topic, or node id of the broker.
        resource_name: ByteString [..],
        /// The entries, null for all.
        configuration_keys: Option<Vec<ByteString>> [..] nullable,
    }

    /// The configuration.
    pub struct DescribeConfigsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..],
        /// The resources.
        results: Vec<DescribeConfigsResult> [..],
    }

    /// One resource of a [`DescribeConfigsResponse`].
    pub struct DescribeConfigsResult {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [..] nullable,
        /// As in the request.
        resource_type: i8 [..],
        /// As in the request.
        resource_name: ByteString [..],
        /// The entries.
        configs: Vec<DescribeConfigsResourceResult> [..],
    }

    /// A configuration entry.
    pub struct DescribeConfigsResourceResult {
        /// Name of the entry.
        name: ByteString [..],
        /// Its value, null when it is secret or not set.
        value: Option<ByteString> [..] nullable,
        /// Whether it cannot be changed.
        read_only: bool [..],
        /// Where it comes from: 1 topic, 2 this broker (dynamic), 3 all brokers (dynamic), 4 this broker's file,
        /// 5 default, 6 logger; −1 unknown.
        config_source: i8 [1..] ignorable = -1,
        /// Whether it is secret.
        is_sensitive: bool [..],
        /// The values that could apply, the strongest first.
        synonyms: Vec<DescribeConfigsSynonym> [1..] ignorable,
        /// Type: 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password; 0 unknown.
        config_type: i8 [3..] ignorable,
        /// What it means.
        documentation: Option<ByteString> [3..] nullable ignorable,
    }

    /// A value that could apply.
    pub struct DescribeConfigsSynonym {
        /// Name of the entry it comes from.
        name: ByteString [1..],
        /// The value.
        value: Option<ByteString> [1..] nullable,
        /// Where it comes from, as `config_source`.
        source: i8 [1..],
    }
}
