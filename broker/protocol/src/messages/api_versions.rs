//! `ApiVersions` (key 18): what a broker serves.
//!
//! The response header is version 0 in every version, so that a client can read the answer to a version
//! the broker did not know (that answer is a version 0 response with error 35).

use super::prelude::*;

api! {
    ApiVersions = 18, versions 0..=4, flexible 3.., ApiVersionsRequest => ApiVersionsResponse;

    /// Asks which APIs the broker serves, and in which versions.
    pub struct ApiVersionsRequest {
        /// Name of the client.
        client_software_name: ByteString [3..] ignorable,
        /// Version of the client.
        client_software_version: ByteString [3..] ignorable,
    }

    /// What the broker serves.
    pub struct ApiVersionsResponse {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// The APIs.
        api_keys: Vec<ApiVersion> [..],
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Features the broker could have.
        supported_features: Vec<SupportedFeatureKey> [3..] tag(0) ignorable,
        /// Epoch of the finalized features, −1 when unknown.
        finalized_features_epoch: i64 [3..] tag(1) ignorable = -1,
        /// Features the cluster has.
        finalized_features: Vec<FinalizedFeatureKey> [3..] tag(2) ignorable,
        /// Whether the quorum is ready for a migration off ZooKeeper.
        zk_migration_ready: bool [3..] tag(3) ignorable,
    }

    /// An API.
    pub struct ApiVersion {
        /// Key of the API.
        api_key: i16 [..],
        /// Lowest version served.
        min_version: i16 [..],
        /// Highest version served.
        max_version: i16 [..],
    }

    /// A feature the broker could have.
    pub struct SupportedFeatureKey {
        /// Name of the feature.
        name: ByteString [3..],
        /// Lowest version.
        min_version: i16 [3..],
        /// Highest version.
        max_version: i16 [3..],
    }

    /// A feature the cluster has.
    pub struct FinalizedFeatureKey {
        /// Name of the feature.
        name: ByteString [3..],
        /// Highest level.
        max_version_level: i16 [3..],
        /// Lowest level.
        min_version_level: i16 [3..],
    }
}
