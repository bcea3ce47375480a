//! Kafka's error codes: number, name, and what a client may do about them.
//!
//! Numbers and names are those of Kafka's `Errors`. Whether a code is worth a retry follows from its exception class there:
//! `Retry` rows are subclasses of `RetriableException`, `Refresh` rows of `InvalidMetadataException`, which is
//! retriable too and asks for fresh metadata first. One row differs: `NOT_CONTROLLER` refreshes here, since
//! the controller is part of the metadata.

use std::fmt;

/// What a row of the table says about its code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// The same request will fail again.
    Fatal,
    /// The same request may succeed later.
    Retry,
    /// The same request may succeed later, at a broker that fresh metadata names.
    Refresh,
}

macro_rules! error_codes {
    ($($variant:ident = $code:literal, $class:ident, $name:literal;)+) => {
        /// An error code as brokers send it; [`ErrorCode::None`] is success.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", $name, "`, ", stringify!($code))]
                $variant,
            )+
            /// A code newer than this table.
            Unknown(i16),
        }

        impl ErrorCode {
            /// Every code of the table, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code for a number; numbers outside the table become [`ErrorCode::Unknown`].
            pub const fn from_i16(code: i16) -> Self {
                match code {
                    $($code => Self::$variant,)+
                    other => Self::Unknown(other),
                }
            }

            /// The number on the wire.
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$variant => $code,)+
                    Self::Unknown(code) => code,
                }
            }

            /// Kafka's name, such as `NOT_LEADER_OR_FOLLOWER`; `UNKNOWN` for a code outside the table.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                    Self::Unknown(_) => "UNKNOWN",
                }
            }

            const fn class(self) -> Class {
                match self {
                    $(Self::$variant => Class::$class,)+
                    Self::Unknown(_) => Class::Fatal,
                }
            }
        }
    };
}

error_codes! {
    UnknownServerError = -1, Fatal, "UNKNOWN_SERVER_ERROR";
    None = 0, Fatal, "NONE";
    OffsetOutOfRange = 1, Fatal, "OFFSET_OUT_OF_RANGE";
    CorruptMessage = 2, Retry, "CORRUPT_MESSAGE";
    UnknownTopicOrPartition = 3, Refresh, "UNKNOWN_TOPIC_OR_PARTITION";
    InvalidFetchSize = 4, Fatal, "INVALID_FETCH_SIZE";
    LeaderNotAvailable = 5, Refresh, "LEADER_NOT_AVAILABLE";
    NotLeaderOrFollower = 6, Refresh, "NOT_LEADER_OR_FOLLOWER";
    RequestTimedOut = 7, Retry, "REQUEST_TIMED_OUT";
    BrokerNotAvailable = 8, Fatal, "BROKER_NOT_AVAILABLE";
    ReplicaNotAvailable = 9, Refresh, "REPLICA_NOT_AVAILABLE";
    MessageTooLarge = 10, Fatal, "MESSAGE_TOO_LARGE";
    StaleControllerEpoch = 11, Fatal, "STALE_CONTROLLER_EPOCH";
    OffsetMetadataTooLarge = 12, Fatal, "OFFSET_METADATA_TOO_LARGE";
    NetworkException = 13, Refresh, "NETWORK_EXCEPTION";
    CoordinatorLoadInProgress = 14, Retry, "COORDINATOR_LOAD_IN_PROGRESS";
    CoordinatorNotAvailable = 15, Retry, "COORDINATOR_NOT_AVAILABLE";
    NotCoordinator = 16, Retry, "NOT_COORDINATOR";
    InvalidTopicException = 17, Fatal, "INVALID_TOPIC_EXCEPTION";
    RecordListTooLarge = 18, Fatal, "RECORD_LIST_TOO_LARGE";
    NotEnoughReplicas = 19, Retry, "NOT_ENOUGH_REPLICAS";
    NotEnoughReplicasAfterAppend = 20, Retry, "NOT_ENOUGH_REPLICAS_AFTER_APPEND";
    InvalidRequiredAcks = 21, Fatal, "INVALID_REQUIRED_ACKS";
    IllegalGeneration = 22, Fatal, "ILLEGAL_GENERATION";
    InconsistentGroupProtocol = 23, Fatal, "INCONSISTENT_GROUP_PROTOCOL";
    InvalidGroupId = 24, Fatal, "INVALID_GROUP_ID";
    UnknownMemberId = 25, Fatal, "UNKNOWN_MEMBER_ID";
    InvalidSessionTimeout = 26, Fatal, "INVALID_SESSION_TIMEOUT";
    RebalanceInProgress = 27, Fatal, "REBALANCE_IN_PROGRESS";
    InvalidCommitOffsetSize = 28, Fatal, "INVALID_COMMIT_OFFSET_SIZE";
    TopicAuthorizationFailed = 29, Fatal, "TOPIC_AUTHORIZATION_FAILED";
    GroupAuthorizationFailed = 30, Fatal, "GROUP_AUTHORIZATION_FAILED";
    ClusterAuthorizationFailed = 31, Fatal, "CLUSTER_AUTHORIZATION_FAILED";
    InvalidTimestamp = 32, Fatal, "INVALID_TIMESTAMP";
    UnsupportedSaslMechanism = 33, Fatal, "UNSUPPORTED_SASL_MECHANISM";
    IllegalSaslState = 34, Fatal, "ILLEGAL_SASL_STATE";
    UnsupportedVersion = 35, Fatal, "UNSUPPORTED_VERSION";
    TopicAlreadyExists = 36, Fatal, "TOPIC_ALREADY_EXISTS";
    InvalidPartitions = 37, Fatal, "INVALID_PARTITIONS";
    InvalidReplicationFactor = 38, Fatal, "INVALID_REPLICATION_FACTOR";
    InvalidReplicaAssignment = 39, Fatal, "INVALID_REPLICA_ASSIGNMENT";
    InvalidConfig = 40, Fatal, "INVALID_CONFIG";
    NotController = 41, Refresh, "NOT_CONTROLLER";
    InvalidRequest = 42, Fatal, "INVALID_REQUEST";
    UnsupportedForMessageFormat = 43, Fatal, "UNSUPPORTED_FOR_MESSAGE_FORMAT";
    PolicyViolation = 44, Fatal, "POLICY_VIOLATION";
    OutOfOrderSequenceNumber = 45, Fatal, "OUT_OF_ORDER_SEQUENCE_NUMBER";
    DuplicateSequenceNumber = 46, Fatal, "DUPLICATE_SEQUENCE_NUMBER";
    InvalidProducerEpoch = 47, Fatal, "INVALID_PRODUCER_EPOCH";
    InvalidTxnState = 48, Fatal, "INVALID_TXN_STATE";
    InvalidProducerIdMapping = 49, Fatal, "INVALID_PRODUCER_ID_MAPPING";
    InvalidTransactionTimeout = 50, Fatal, "INVALID_TRANSACTION_TIMEOUT";
    ConcurrentTransactions = 51, Fatal, "CONCURRENT_TRANSACTIONS";
    TransactionCoordinatorFenced = 52, Fatal, "TRANSACTION_COORDINATOR_FENCED";
    TransactionalIdAuthorizationFailed = 53, Fatal, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED";
    SecurityDisabled = 54, Fatal, "SECURITY_DISABLED";
    OperationNotAttempted = 55, Fatal, "OPERATION_NOT_ATTEMPTED";
    KafkaStorageError = 56, Refresh, "KAFKA_STORAGE_ERROR";
    LogDirNotFound = 57, Fatal, "LOG_DIR_NOT_FOUND";
    SaslAuthenticationFailed = 58, Fatal, "SASL_AUTHENTICATION_FAILED";
    UnknownProducerId = 59, Fatal, "UNKNOWN_PRODUCER_ID";
    ReassignmentInProgress = 60, Fatal, "REASSIGNMENT_IN_PROGRESS";
    DelegationTokenAuthDisabled = 61, Fatal, "DELEGATION_TOKEN_AUTH_DISABLED";
    DelegationTokenNotFound = 62, Fatal, "DELEGATION_TOKEN_NOT_FOUND";
    DelegationTokenOwnerMismatch = 63, Fatal, "DELEGATION_TOKEN_OWNER_MISMATCH";
    DelegationTokenRequestNotAllowed = 64, Fatal, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED";
    DelegationTokenAuthorizationFailed = 65, Fatal, "DELEGATION_TOKEN_AUTHORIZATION_FAILED";
    DelegationTokenExpired = 66, Fatal, "DELEGATION_TOKEN_EXPIRED";
    InvalidPrincipalType = 67, Fatal, "INVALID_PRINCIPAL_TYPE";
    NonEmptyGroup = 68, Fatal, "NON_EMPTY_GROUP";
    GroupIdNotFound = 69, Fatal, "GROUP_ID_NOT_FOUND";
    FetchSessionIdNotFound = 70, Retry, "FETCH_SESSION_ID_NOT_FOUND";
    InvalidFetchSessionEpoch = 71, Retry, "INVALID_FETCH_SESSION_EPOCH";
    ListenerNotFound = 72, Refresh, "LISTENER_NOT_FOUND";
    TopicDeletionDisabled = 73, Fatal, "TOPIC_DELETION_DISABLED";
    FencedLeaderEpoch = 74, Refresh, "FENCED_LEADER_EPOCH";
    UnknownLeaderEpoch = 75, Retry, "UNKNOWN_LEADER_EPOCH";
    UnsupportedCompressionType = 76, Fatal, "UNSUPPORTED_COMPRESSION_TYPE";
    StaleBrokerEpoch = 77, Fatal, "STALE_BROKER_EPOCH";
    OffsetNotAvailable = 78, Retry, "OFFSET_NOT_AVAILABLE";
    MemberIdRequired = 79, Fatal, "MEMBER_ID_REQUIRED";
    PreferredLeaderNotAvailable = 80, Refresh, "PREFERRED_LEADER_NOT_AVAILABLE";
    GroupMaxSizeReached = 81, Fatal, "GROUP_MAX_SIZE_REACHED";
    FencedInstanceId = 82, Fatal, "FENCED_INSTANCE_ID";
    EligibleLeadersNotAvailable = 83, Refresh, "ELIGIBLE_LEADERS_NOT_AVAILABLE";
    ElectionNotNeeded = 84, Refresh, "ELECTION_NOT_NEEDED";
    NoReassignmentInProgress = 85, Fatal, "NO_REASSIGNMENT_IN_PROGRESS";
    GroupSubscribedToTopic = 86, Fatal, "GROUP_SUBSCRIBED_TO_TOPIC";
    InvalidRecord = 87, Fatal, "INVALID_RECORD";
    UnstableOffsetCommit = 88, Retry, "UNSTABLE_OFFSET_COMMIT";
    ThrottlingQuotaExceeded = 89, Retry, "THROTTLING_QUOTA_EXCEEDED";
    ProducerFenced = 90, Fatal, "PRODUCER_FENCED";
    ResourceNotFound = 91, Fatal, "RESOURCE_NOT_FOUND";
    DuplicateResource = 92, Fatal, "DUPLICATE_RESOURCE";
    UnacceptableCredential = 93, Fatal, "UNACCEPTABLE_CREDENTIAL";
    InconsistentVoterSet = 94, Fatal, "INCONSISTENT_VOTER_SET";
    InvalidUpdateVersion = 95, Fatal, "INVALID_UPDATE_VERSION";
    FeatureUpdateFailed = 96, Fatal, "FEATURE_UPDATE_FAILED";
    PrincipalDeserializationFailure = 97, Fatal, "PRINCIPAL_DESERIALIZATION_FAILURE";
    SnapshotNotFound = 98, Fatal, "SNAPSHOT_NOT_FOUND";
    PositionOutOfRange = 99, Fatal, "POSITION_OUT_OF_RANGE";
    UnknownTopicId = 100, Refresh, "UNKNOWN_TOPIC_ID";
    DuplicateBrokerRegistration = 101, Fatal, "DUPLICATE_BROKER_REGISTRATION";
    BrokerIdNotRegistered = 102, Fatal, "BROKER_ID_NOT_REGISTERED";
    InconsistentTopicId = 103, Refresh, "INCONSISTENT_TOPIC_ID";
    InconsistentClusterId = 104, Fatal, "INCONSISTENT_CLUSTER_ID";
    TransactionalIdNotFound = 105, Fatal, "TRANSACTIONAL_ID_NOT_FOUND";
    FetchSessionTopicIdError = 106, Retry, "FETCH_SESSION_TOPIC_ID_ERROR";
    IneligibleReplica = 107, Fatal, "INELIGIBLE_REPLICA";
    NewLeaderElected = 108, Fatal, "NEW_LEADER_ELECTED";
    OffsetMovedToTieredStorage = 109, Fatal, "OFFSET_MOVED_TO_TIERED_STORAGE";
    FencedMemberEpoch = 110, Fatal, "FENCED_MEMBER_EPOCH";
    UnreleasedInstanceId = 111, Fatal, "UNRELEASED_INSTANCE_ID";
    UnsupportedAssignor = 112, Fatal, "UNSUPPORTED_ASSIGNOR";
    StaleMemberEpoch = 113, Fatal, "STALE_MEMBER_EPOCH";
    MismatchedEndpointType = 114, Fatal, "MISMATCHED_ENDPOINT_TYPE";
    UnsupportedEndpointType = 115, Fatal, "UNSUPPORTED_ENDPOINT_TYPE";
    UnknownControllerId = 116, Fatal, "UNKNOWN_CONTROLLER_ID";
    UnknownSubscriptionId = 117, Fatal, "UNKNOWN_SUBSCRIPTION_ID";
    TelemetryTooLarge = 118, Fatal, "TELEMETRY_TOO_LARGE";
    InvalidRegistration = 119, Fatal, "INVALID_REGISTRATION";
    TransactionAbortable = 120, Fatal, "TRANSACTION_ABORTABLE";
    InvalidRecordState = 121, Fatal, "INVALID_RECORD_STATE";
    ShareSessionNotFound = 122, Retry, "SHARE_SESSION_NOT_FOUND";
    InvalidShareSessionEpoch = 123, Retry, "INVALID_SHARE_SESSION_EPOCH";
    FencedStateEpoch = 124, Fatal, "FENCED_STATE_EPOCH";
    InvalidVoterKey = 125, Fatal, "INVALID_VOTER_KEY";
    DuplicateVoter = 126, Fatal, "DUPLICATE_VOTER";
    VoterNotFound = 127, Fatal, "VOTER_NOT_FOUND";
    InvalidRegularExpression = 128, Fatal, "INVALID_REGULAR_EXPRESSION";
    RebootstrapRequired = 129, Fatal, "REBOOTSTRAP_REQUIRED";
    StreamsInvalidTopology = 130, Fatal, "STREAMS_INVALID_TOPOLOGY";
    StreamsInvalidTopologyEpoch = 131, Fatal, "STREAMS_INVALID_TOPOLOGY_EPOCH";
    StreamsTopologyFenced = 132, Fatal, "STREAMS_TOPOLOGY_FENCED";
    ShareSessionLimitReached = 133, Retry, "SHARE_SESSION_LIMIT_REACHED";
}

impl ErrorCode {
    /// Whether the code is [`ErrorCode::None`].
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::None)
    }

    /// Success, or the code as an error.
    ///
    /// # Errors
    /// The code itself, unless it is [`ErrorCode::None`].
    pub const fn into_result(self) -> Result<(), Self> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }

    /// Whether the same request may succeed later. False for success and for unknown codes.
    pub const fn retriable(self) -> bool {
        matches!(self.class(), Class::Retry | Class::Refresh)
    }

    /// Whether the client's metadata is out of date and must be fetched before the retry.
    pub const fn refreshes_metadata(self) -> bool {
        matches!(self.class(), Class::Refresh)
    }
}

impl From<i16> for ErrorCode {
    fn from(code: i16) -> Self {
        Self::from_i16(code)
    }
}

impl From<ErrorCode> for i16 {
    fn from(code: ErrorCode) -> Self {
        code.code()
    }
}

impl std::error::Error for ErrorCode {}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.code())
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::error::ResponseError;

    use super::*;

    #[test]
    fn numbers_names_and_retries_agree_with_the_reference_crate() {
        for code in -10..=200i16 {
            let ours = ErrorCode::from_i16(code);
            assert_eq!(ours.code(), code);
            let Some(theirs) = ResponseError::try_from_code(code) else {
                assert_eq!(ours, ErrorCode::None);
                continue;
            };
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
            assert_eq!(ours.retriable(), theirs.is_retriable(), "{ours}");
        }
    }

    #[test]
    fn table_is_whole_ordered_and_named_as_kafka_does() {
        let numbers: Vec<i16> = ErrorCode::ALL.iter().map(|code| code.code()).collect();
        assert_eq!(numbers, (-1..=133).collect::<Vec<_>>());
        for code in ErrorCode::ALL {
            let camel: String = code
                .name()
                .split('_')
                .map(|word| {
                    let (first, rest) = word.split_at(1);
                    format!("{first}{}", rest.to_lowercase())
                })
                .collect();
            assert_eq!(camel, format!("{code:?}"));
        }
    }

    #[test]
    fn what_refreshes_metadata_is_also_retriable() {
        for code in ErrorCode::ALL {
            assert!(!code.refreshes_metadata() || code.retriable(), "{code}");
        }
        assert!(ErrorCode::NotLeaderOrFollower.refreshes_metadata());
        assert!(ErrorCode::NotController.refreshes_metadata());
        assert!(!ErrorCode::RequestTimedOut.refreshes_metadata());
        assert!(!ErrorCode::OffsetOutOfRange.retriable());
        assert!(!ErrorCode::Unknown(999).retriable());
    }

    #[test]
    fn display_has_name_and_number() {
        assert_eq!(
            ErrorCode::NotLeaderOrFollower.to_string(),
            "NOT_LEADER_OR_FOLLOWER (6)"
        );
        assert_eq!(ErrorCode::Unknown(999).to_string(), "UNKNOWN (999)");
    }
}
