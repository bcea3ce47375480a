//! What can go wrong, by what the caller can do about it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::TopicName;
use broker_protocol::record;
use broker_protocol::sasl::{self, Mechanism};

use crate::tls::TlsFault;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A shared cause, so that one failure can be told to everybody who waited for it.
pub type Cause = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The same call may succeed later; the client has already tried for its deadline.
    Retriable,
    /// The same call will fail again: data or peer are not what they must be.
    Fatal,
    /// What was asked for does not exist, is not allowed or is malformed.
    Caller,
}

/// Failure of an operation of this crate. Cheap to clone.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting cannot work.
    #[error("setting {field} {problem}")]
    InvalidConfig {
        /// Name of the setting.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No connection could be opened.
    #[error("cannot connect to {address}")]
    Unreachable {
        /// One address, or all that were tried.
        address: Arc<str>,
        /// Why.
        source: Arc<io::Error>,
    },
    /// TLS failed, in the handshake or by what the broker said of it later.
    #[error("no secure connection to {address}: {fault}")]
    Tls {
        /// The broker.
        address: Arc<str>,
        /// What is wrong.
        fault: TlsFault,
        /// In the words of the TLS library or the system.
        source: Option<Arc<io::Error>>,
    },
    /// The broker speaks TLS, and the configuration has none.
    #[error("{address} answers in TLS, and this client speaks plaintext")]
    WantsTls {
        /// The broker.
        address: Arc<str>,
    },
    /// The broker does not accept name and password.
    #[error("{address} does not let {username} in by {mechanism}: {message}")]
    NotAuthenticated {
        /// The broker.
        address: Arc<str>,
        /// As configured.
        mechanism: Mechanism,
        /// As configured.
        username: Box<str>,
        /// The broker's own words.
        message: Box<str>,
    },
    /// The broker does not know the SASL mechanism.
    #[error("{address} does not offer {mechanism} (offered: {offered})")]
    MechanismNotOffered {
        /// The broker.
        address: Arc<str>,
        /// As configured.
        mechanism: Mechanism,
        /// What it offers.
        offered: Box<str>,
    },
    /// The broker does not keep to the SASL mechanism, or does not know the password it asks for.
    #[error("{address} cannot be trusted to know the password ({mechanism})")]
    Sasl {
        /// The broker.
        address: Arc<str>,
        /// As configured.
        mechanism: Mechanism,
        /// What is wrong.
        source: sasl::Fault,
    },
    /// The broker closed a new connection instead of answering its first request after the handshake, as one
    /// does that wants SASL or TLS. Whether the request was carried out is unknown.
    #[error("{address} closed the connection instead of its first answer")]
    Unwelcome {
        /// The broker.
        address: Arc<str>,
        /// Why, where the system said so.
        source: Option<Arc<io::Error>>,
    },
    /// The connection ended before the answer came. Whether the request was carried out is unknown.
    #[error("connection to {address} was closed before the answer")]
    Disconnected {
        /// The broker.
        address: Arc<str>,
        /// Why, where the system said so.
        source: Option<Arc<io::Error>>,
    },
    /// One call got no answer in time. Whether the request was carried out is unknown.
    #[error("{address} did not answer {operation} within {after:?}")]
    NoAnswer {
        /// The broker.
        address: Arc<str>,
        /// Kafka's name of the request.
        operation: &'static str,
        /// How long the client waited.
        after: Duration,
    },
    /// An operation was repeated until its deadline.
    #[error("{operation}{} did not succeed within {after:?}", At(topic.as_ref(), *partition, *offset))]
    Timeout {
        /// What was tried.
        operation: &'static str,
        /// Its topic.
        topic: Option<TopicName>,
        /// Its partition.
        partition: Option<i32>,
        /// The position that was not passed.
        offset: Option<i64>,
        /// How long it was tried.
        after: Duration,
        /// What the last try failed with; nothing if it was answered, but without progress.
        source: Option<Box<Self>>,
    },
    /// The broker refused.
    #[error("{operation}{} was refused: {code}{}", At(topic.as_ref(), *partition, None), Detail(message.as_deref()))]
    Kafka {
        /// Kafka's name of the request.
        operation: &'static str,
        /// Kafka's error code.
        code: ErrorCode,
        /// The topic it is about.
        topic: Option<TopicName>,
        /// The partition it is about.
        partition: Option<i32>,
        /// The broker's own words.
        message: Option<String>,
    },
    /// The offset is not, or no longer, in the log.
    #[error(
        "offset {offset} of {topic}-{partition} is outside the log [{log_start_offset}, {log_end_offset})"
    )]
    OffsetOutOfRange {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
        /// The offset asked for.
        offset: i64,
        /// First offset the broker has.
        log_start_offset: i64,
        /// End of what the broker has (exclusive): its high watermark.
        log_end_offset: i64,
    },
    /// No such topic.
    #[error("topic {topic} does not exist")]
    UnknownTopic {
        /// Its name.
        topic: TopicName,
    },
    /// The topic has no such partition.
    #[error("topic {topic} has no partition {partition}")]
    UnknownPartition {
        /// The topic.
        topic: TopicName,
        /// The partition asked for.
        partition: i32,
    },
    /// The topic was deleted and made again while it was read.
    #[error("topic {topic} was deleted and made again while it was in use")]
    TopicReplaced {
        /// Its name.
        topic: TopicName,
    },
    /// The partition had no leader until the deadline.
    #[error("{topic}-{partition} has no leader")]
    NoLeader {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
    },
    /// A batch is damaged.
    #[error("record batch at offset {offset} of {topic}-{partition} is damaged")]
    CorruptBatch {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
        /// Base offset of the batch, or the position it was found at.
        offset: i64,
        /// What is wrong with it.
        source: BatchFault,
    },
    /// A batch is larger than the client may hold.
    #[error(
        "record batch at offset {offset} of {topic}-{partition} has {size} bytes, more than the cap of {cap}"
    )]
    BatchTooLarge {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
        /// The position at which the batch was found.
        offset: i64,
        /// Size of the batch, or of the response around it if that was already too large to read.
        size: usize,
        /// The configured cap.
        cap: usize,
    },
    /// A record to be produced is too large.
    #[error("record of {size} bytes for topic {topic} is too large{}", Cap(*cap))]
    RecordTooLarge {
        /// The topic.
        topic: TopicName,
        /// Size of the record before compression.
        size: usize,
        /// The producer's cap; nothing if it was the broker that refused.
        cap: Option<usize>,
    },
    /// The broker lacks an API, or every version of it that this client can use.
    #[error("{address} does not offer {api} in a usable version (offered: {}, usable: {}-{})", Offered(*offered), usable.0, usable.1)]
    UnsupportedApi {
        /// The broker.
        address: Arc<str>,
        /// Kafka's name of the request.
        api: &'static str,
        /// Lowest and highest version offered.
        offered: Option<(i16, i16)>,
        /// Lowest and highest version this client can use.
        usable: (i16, i16),
    },
    /// An answer is larger than the client may read.
    #[error("{address} answers with {size} bytes, more than the cap of {cap}")]
    ResponseTooLarge {
        /// The broker.
        address: Arc<str>,
        /// Announced size.
        size: usize,
        /// Configured cap.
        cap: usize,
    },
    /// The peer does not speak the protocol, or a request could not be written in it.
    #[error("{address} and this client do not understand each other")]
    Protocol {
        /// The broker.
        address: Arc<str>,
        /// What was wrong.
        source: Cause,
    },
    /// A batch to be produced cannot be encoded.
    #[error("records for topic {topic} cannot be encoded")]
    Unencodable {
        /// The topic.
        topic: TopicName,
        /// Why.
        source: Arc<record::Error>,
    },
    /// The client or producer was closed while the operation was under way.
    #[error("the client was closed while the operation was under way")]
    Closed,
}

/// What is wrong with a batch.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BatchFault {
    /// It does not parse, or its CRC does not match.
    #[error(transparent)]
    Record(Arc<record::Error>),
    /// It overlaps the batch before it.
    #[error("it starts at {found}, but the batch before it ended at {expected}")]
    OutOfOrder {
        /// End of the batch before.
        expected: i64,
        /// Base offset found.
        found: i64,
    },
}

impl From<record::Error> for BatchFault {
    fn from(error: record::Error) -> Self {
        Self::Record(Arc::new(error))
    }
}

impl Error {
    /// Whether to try again.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable { .. }
            | Self::Disconnected { .. }
            | Self::Unwelcome { .. }
            | Self::NoAnswer { .. }
            | Self::Timeout { .. }
            | Self::NoLeader { .. }
            | Self::Tls {
                fault: TlsFault::Closed,
                ..
            } => ErrorKind::Retriable,
            Self::Kafka { code, .. } if code.retriable() => ErrorKind::Retriable,
            Self::Kafka { .. }
            | Self::InvalidConfig { .. }
            | Self::Tls { .. }
            | Self::WantsTls { .. }
            | Self::NotAuthenticated { .. }
            | Self::MechanismNotOffered { .. }
            | Self::OffsetOutOfRange { .. }
            | Self::UnknownTopic { .. }
            | Self::UnknownPartition { .. }
            | Self::RecordTooLarge { .. }
            | Self::UnsupportedApi { .. }
            | Self::Unencodable { .. }
            | Self::Closed => ErrorKind::Caller,
            Self::TopicReplaced { .. }
            | Self::CorruptBatch { .. }
            | Self::BatchTooLarge { .. }
            | Self::ResponseTooLarge { .. }
            | Self::Sasl { .. }
            | Self::Protocol { .. } => ErrorKind::Fatal,
        }
    }

    /// Kafka's error code, if the broker gave one, also as the last cause of a timeout.
    pub fn code(&self) -> Option<ErrorCode> {
        if let Self::Kafka { code, .. } = self.root() {
            Some(*code)
        } else {
            None
        }
    }

    /// The last cause of a timeout, or the error itself.
    pub fn root(&self) -> &Self {
        if let Self::Timeout {
            source: Some(source),
            ..
        } = self
        {
            source.root()
        } else {
            self
        }
    }

    /// What an operator can do, in one sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InvalidConfig { .. } => "correct the setting",
            Self::Unreachable { .. } | Self::Disconnected { .. } | Self::NoAnswer { .. } => {
                "check that the broker runs and that its advertised address can be reached from here"
            }
            Self::Tls { fault, .. } => fault.remedy(),
            Self::WantsTls { .. } => {
                "set tls, or use the address of the broker's plaintext listener"
            }
            Self::NotAuthenticated { .. } => {
                "check the username, the password and that the broker has this user for this mechanism"
            }
            Self::MechanismNotOffered { .. } => "set sasl.mechanism to one that the broker offers",
            Self::Sasl { .. } => {
                "check that the address is that of your own broker: it may be somebody else's"
            }
            Self::Unwelcome { .. } => {
                "check that the broker runs, and that this listener wants neither TLS (set tls) nor SASL (set \
                 sasl)"
            }
            Self::Timeout {
                source: Some(source),
                ..
            } => source.remedy(),
            Self::Timeout { source: None, .. } => "check the partition's leader and its log",
            Self::Kafka { .. } => "see the broker's log for this request",
            Self::OffsetOutOfRange { .. } => {
                "retention, deletion or truncation removed the offset; start from one that is there"
            }
            Self::UnknownTopic { .. } | Self::UnknownPartition { .. } => {
                "check the name, or create it"
            }
            Self::TopicReplaced { .. } => "start over with the new topic",
            Self::NoLeader { .. } => "bring a replica of the partition back",
            Self::CorruptBatch { .. } => "check the broker's disk and log; restore the replica",
            Self::BatchTooLarge { .. } | Self::ResponseTooLarge { .. } => {
                "raise max_batch_bytes if the machine has the memory"
            }
            Self::RecordTooLarge { .. } => "raise max.message.bytes of the topic, or send less",
            Self::Unencodable { .. } => "send smaller records, or check the compression codec",
            Self::UnsupportedApi { .. } => "use a broker that has it",
            Self::Protocol { .. } => "check that the address is a Kafka broker's",
            Self::Closed => "flush before dropping the producer",
        }
    }

    /// Whether the leader or coordinator asked is probably not the right one any more.
    pub(crate) fn wants_refresh(&self) -> bool {
        if let Self::Kafka { code, .. } = self {
            // An epoch unknown to the broker may also be that of a topic of the same name before.
            return code.refreshes_metadata() || *code == ErrorCode::UnknownLeaderEpoch;
        }
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Disconnected { .. }
                | Self::Unwelcome { .. }
                | Self::Tls { .. }
                | Self::NoAnswer { .. }
                | Self::NoLeader { .. }
                | Self::UnknownTopic { .. }
                | Self::UnknownPartition { .. }
        )
    }

    /// Whether the thing may only be too new for the broker asked.
    pub(crate) fn may_lag(&self) -> bool {
        matches!(
            self,
            Self::UnknownTopic { .. } | Self::UnknownPartition { .. }
        )
    }
}

/// " of topic-partition at offset n", as far as known.
struct At<'a>(Option<&'a TopicName>, Option<i32>, Option<i64>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Some(topic), Some(partition)) => write!(f, " of {topic}-{partition}")?,
            (Some(topic), None) => write!(f, " of {topic}")?,
            (None, _) => {}
        }
        match self.2 {
            Some(offset) => write!(f, " at offset {offset}"),
            None => Ok(()),
        }
    }
}

struct Detail<'a>(Option<&'a str>);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(text) if !text.is_empty() => write!(f, " ({text})"),
            _ => Ok(()),
        }
    }
}

struct Cap(Option<usize>);

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(cap) => write!(f, ": the cap is {cap}"),
            None => f.write_str(" for the broker"),
        }
    }
}

struct Offered(Option<(i16, i16)>);

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((min, max)) => write!(f, "{min}-{max}"),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> TopicName {
        TopicName::new("orders").unwrap()
    }

    #[test]
    fn timeout_names_the_place_and_carries_the_cause() {
        let last = Error::NoLeader {
            topic: topic(),
            partition: 3,
        };
        let error = Error::Timeout {
            operation: "Fetch",
            topic: Some(topic()),
            partition: Some(3),
            offset: Some(17),
            after: Duration::from_secs(60),
            source: Some(Box::new(last)),
        };
        assert_eq!(
            error.to_string(),
            "Fetch of orders-3 at offset 17 did not succeed within 60s"
        );
        let cause = std::error::Error::source(&error).expect("cause");
        assert_eq!(cause.to_string(), "orders-3 has no leader");
        assert!(matches!(error.root(), Error::NoLeader { partition: 3, .. }));
    }

    #[test]
    fn error_stays_small_enough_to_return() {
        assert!(size_of::<Error>() <= 120, "{}", size_of::<Error>());
    }
}
