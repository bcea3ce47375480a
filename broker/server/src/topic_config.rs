//! Topic settings under Apache Kafka's names: which exist, what they may be, what a topic without them does.
//!
//! A setting that Kafka has and this table lacks is refused with `INVALID_CONFIG`, so that nobody believes in
//! a promise that is not kept. [`Effect::Kept`] marks settings that are stored and answered but not yet acted on.

use std::{collections::BTreeMap, time::Duration};

use broker_log::{CompactionConfig, LogConfig, TimestampType, Visibility};
use bytesize::ByteSize;

use crate::config::Config;

/// Kafka's name of the topic in which groups are written down.
pub(crate) const CONSUMER_OFFSETS: &str = "__consumer_offsets";

/// What a topic's settings are when written down: only those that differ from the broker's.
pub(crate) type Overrides = BTreeMap<String, String>;

/// Kafka's config types, as `DescribeConfigs` numbers them (KIP-569).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Boolean,
    /// Free text from a closed list.
    Text,
    /// 32-bit signed number.
    Int,
    /// 64-bit signed number.
    Long,
    /// Floating point number.
    Double,
    /// Comma-separated words.
    List,
}

impl Kind {
    /// The number on the wire.
    pub(crate) fn code(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::Text => 2,
            Self::Int => 3,
            Self::Long => 5,
            Self::Double => 6,
            Self::List => 7,
        }
    }
}

/// Whether this broker acts on a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Acted upon.
    Enforced,
    /// Stored and answered; nothing acts on it in this version.
    Kept,
}

/// Values a setting may have.
#[derive(Debug, Clone, Copy)]
enum Allowed {
    Words(&'static [&'static str]),
    WordList(&'static [&'static str]),
    Whole { least: i64, most: i64 },
    Ratio,
    Boolean,
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Key {
    /// Kafka's name.
    pub(crate) name: &'static str,
    /// Type on the wire.
    pub(crate) kind: Kind,
    /// Whether it does anything.
    pub(crate) effect: Effect,
    /// One sentence for `DescribeConfigs`.
    pub(crate) documentation: &'static str,
    allowed: Allowed,
    default: Default,
}

#[derive(Debug)]
enum Default {
    Fixed(&'static str),
    Broker(fn(&Config) -> String),
}

impl Key {
    /// The value of a topic that does not set it.
    pub(crate) fn default(&self, config: &Config) -> String {
        match &self.default {
            Default::Fixed(text) => (*text).to_owned(),
            Default::Broker(of) => of(config),
        }
    }
}

const ANY_LONG: Allowed = Allowed::Whole {
    least: 0,
    most: i64::MAX,
};
const LONG_OR_NONE: Allowed = Allowed::Whole {
    least: -1,
    most: i64::MAX,
};
const SOME_LONG: Allowed = Allowed::Whole {
    least: 1,
    most: i64::MAX,
};

const fn enforced(
    name: &'static str,
    kind: Kind,
    allowed: Allowed,
    default: Default,
    documentation: &'static str,
) -> Key {
    Key {
        name,
        kind,
        effect: Effect::Enforced,
        documentation,
        allowed,
        default,
    }
}

const fn kept(
    name: &'static str,
    kind: Kind,
    allowed: Allowed,
    default: &'static str,
    documentation: &'static str,
) -> Key {
    let default = Default::Fixed(default);
    Key {
        name,
        kind,
        effect: Effect::Kept,
        documentation,
        allowed,
        default,
    }
}

/// The one setting that Kafka does not have.
const VISIBILITY: &str = "logferry.visibility";

/// Every setting a topic can have, by name.
pub(crate) const KEYS: &[Key] = &[
    enforced(
        "cleanup.policy",
        Kind::List,
        Allowed::WordList(&["delete", "compact"]),
        Default::Fixed("delete"),
        "How old records go; with compact, records without a key are refused.",
    ),
    enforced(
        "compression.type",
        Kind::Text,
        Allowed::Words(&["producer"]),
        Default::Fixed("producer"),
        "Batches are stored as the producer compressed them; nothing else is offered.",
    ),
    enforced(
        "delete.retention.ms",
        Kind::Long,
        ANY_LONG,
        Default::Fixed("86400000"),
        "Time that tombstones of a compacted topic stay.",
    ),
    kept(
        "file.delete.delay.ms",
        Kind::Long,
        ANY_LONG,
        "60000",
        "Time before a removed segment's file is deleted.",
    ),
    enforced(
        "flush.messages",
        Kind::Long,
        SOME_LONG,
        Default::Fixed("9223372036854775807"),
        "Unflushed records at which a produce request waits for a flush.",
    ),
    enforced(
        "flush.ms",
        Kind::Long,
        ANY_LONG,
        Default::Fixed("9223372036854775807"),
        "Time after which the log is written through to the disk; the broker's flush_interval if shorter.",
    ),
    enforced(
        "index.interval.bytes",
        Kind::Int,
        Allowed::Whole {
            least: 0,
            most: i32::MAX as i64,
        },
        Default::Fixed("4096"),
        "Bytes of log between two entries of the offset index.",
    ),
    enforced(
        VISIBILITY,
        Kind::Text,
        Allowed::Words(&["committed", "flushed"]),
        Default::Fixed("committed"),
        "Not Kafka's: when consumers see a record, and acks=all is answered: at once or once it is on the disk.",
    ),
    enforced(
        "max.compaction.lag.ms",
        Kind::Long,
        SOME_LONG,
        Default::Fixed("9223372036854775807"),
        "Time after which a record must be compacted.",
    ),
    enforced(
        "max.message.bytes",
        Kind::Int,
        Allowed::Whole {
            least: 0,
            most: i32::MAX as i64,
        },
        Default::Broker(|config| config.max_message_bytes.as_u64().to_string()),
        "Largest record batch, compressed as it came.",
    ),
    enforced(
        "message.timestamp.after.max.ms",
        Kind::Long,
        ANY_LONG,
        Default::Fixed("3600000"),
        "How far a record's time may lie in the future.",
    ),
    enforced(
        "message.timestamp.before.max.ms",
        Kind::Long,
        ANY_LONG,
        Default::Fixed("9223372036854775807"),
        "How far a record's time may lie in the past.",
    ),
    enforced(
        "message.timestamp.type",
        Kind::Text,
        Allowed::Words(&["CreateTime", "LogAppendTime"]),
        Default::Fixed("CreateTime"),
        "Whose time a record carries: the producer's or the broker's at append.",
    ),
    enforced(
        "min.cleanable.dirty.ratio",
        Kind::Double,
        Allowed::Ratio,
        Default::Fixed("0.5"),
        "Share of uncompacted log that makes compaction worth while.",
    ),
    enforced(
        "min.compaction.lag.ms",
        Kind::Long,
        ANY_LONG,
        Default::Fixed("0"),
        "Time that a record stays uncompacted at least.",
    ),
    enforced(
        "min.insync.replicas",
        Kind::Int,
        Allowed::Whole {
            least: 1,
            most: i32::MAX as i64,
        },
        Default::Fixed("1"),
        "Replicas that acks=all needs; this broker has one, so more refuses such produce requests.",
    ),
    kept(
        "preallocate",
        Kind::Boolean,
        Allowed::Boolean,
        "false",
        "Whether a segment's file is made at its full size.",
    ),
    enforced(
        "retention.bytes",
        Kind::Long,
        LONG_OR_NONE,
        Default::Broker(|config| unlimited(bytes_as_long(config.retention_bytes))),
        "Size of a partition beyond which old segments go.",
    ),
    enforced(
        "retention.ms",
        Kind::Long,
        LONG_OR_NONE,
        Default::Broker(|config| unlimited(millis(config.retention_age))),
        "Age at which old segments go.",
    ),
    enforced(
        "segment.bytes",
        Kind::Int,
        Allowed::Whole {
            least: 1024,
            most: i32::MAX as i64,
        },
        Default::Broker(|config| config.segment_bytes.as_u64().to_string()),
        "Bytes after which a segment is closed and a new one begun.",
    ),
    kept(
        "segment.index.bytes",
        Kind::Int,
        Allowed::Whole {
            least: 4,
            most: i32::MAX as i64,
        },
        "10485760",
        "Largest size of a segment's index.",
    ),
    kept(
        "segment.jitter.ms",
        Kind::Long,
        ANY_LONG,
        "0",
        "Random part taken off segment.ms.",
    ),
    enforced(
        "segment.ms",
        Kind::Long,
        SOME_LONG,
        Default::Broker(|config| millis(config.segment_age).to_string()),
        "Age after which a segment is closed and a new one begun.",
    ),
    kept(
        "unclean.leader.election.enable",
        Kind::Boolean,
        Allowed::Boolean,
        "false",
        "Whether a replica out of sync may lead.",
    ),
];

/// A ratio from 0 to 1 in millionths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is clamped before"
)]
fn millionths(ratio: f64) -> u32 {
    (ratio.clamp(0.0, 1.0) * 1e6).round() as u32
}

/// A limit that is written as 0 in our configuration and as -1 in Kafka's if there is none.
pub(crate) fn unlimited(limit: i64) -> String {
    if limit == 0 { -1 } else { limit }.to_string()
}

/// A size as a signed number, saturating.
pub(crate) fn bytes_as_long(size: ByteSize) -> i64 {
    i64::try_from(size.as_u64()).unwrap_or(i64::MAX)
}

/// Whole milliseconds, saturating: settings are signed 64-bit on the wire.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The row of `name`.
pub(crate) fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Checks one setting.
///
/// # Errors
/// The sentence to answer with `INVALID_CONFIG`.
pub(crate) fn check(name: &str, value: Option<&str>) -> Result<(), String> {
    let Some(key) = key(name) else {
        return Err(format!("unknown topic config name: {name}"));
    };
    let Some(value) = value else {
        return Err(format!("null value not supported for topic config {name}"));
    };
    let refuse = |wanted: String| {
        Err(format!(
            "invalid value {value} for topic config {name}: {wanted}"
        ))
    };
    match key.allowed {
        Allowed::Words(words) if words.contains(&value) => Ok(()),
        Allowed::Words(words) => refuse(format!("must be one of {}", words.join(", "))),
        Allowed::WordList(words) => {
            let mut parts = value.split(',').map(str::trim);
            if parts.all(|part| words.contains(&part)) {
                Ok(())
            } else {
                refuse(format!("must be a list of {}", words.join(", ")))
            }
        }
        Allowed::Whole { least, most } => match value.trim().parse::<i64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(()),
            _ => refuse(format!("must be a whole number from {least} to {most}")),
        },
        Allowed::Ratio => match value.trim().parse::<f64>() {
            Ok(number) if (0.0..=1.0).contains(&number) => Ok(()),
            _ => refuse("must be a number from 0 to 1".to_owned()),
        },
        Allowed::Boolean if matches!(value, "true" | "false") => Ok(()),
        Allowed::Boolean => refuse("must be true or false".to_owned()),
    }
}

/// Checks all settings of a topic, each of which passed [`check`], beside each other and for what the topic is.
///
/// # Errors
/// The sentence to answer with `INVALID_CONFIG`.
pub(crate) fn check_all(config: &Config, topic: &str, overrides: &Overrides) -> Result<(), String> {
    check_together(overrides)?;
    if topic == CONSUMER_OFFSETS {
        check_offsets_topic(config, overrides)?;
    }
    Ok(())
}

fn check_together(overrides: &Overrides) -> Result<(), String> {
    let (least, most) = ("min.compaction.lag.ms", "max.compaction.lag.ms");
    let whole = |name| overrides.get(name)?.trim().parse::<i64>().ok();
    match (whole(least), whole(most)) {
        (Some(at_least), Some(at_most)) if at_least > at_most => Err(format!(
            "{least} ({at_least}) must not be above {most} ({at_most})"
        )),
        _ => Ok(()),
    }
}

/// Apache Kafka allows any settings here, and then loses groups by them.
fn check_offsets_topic(config: &Config, overrides: &Overrides) -> Result<(), String> {
    let settings = Settings { config, overrides };
    if !settings.cleanup("compact") || settings.cleanup("delete") {
        return Err(
            "cleanup.policy of __consumer_offsets must be compact, and named where all settings are replaced: \
             committed offsets and groups would be lost by age"
                .to_owned(),
        );
    }
    let (bytes, least) = (
        settings.size("max.message.bytes"),
        config.max_message_bytes.as_u64(),
    );
    if bytes < least {
        return Err(format!(
            "max.message.bytes of __consumer_offsets ({bytes}) must not be below the broker's \
             max_message_bytes ({least}): commits and assignments would be refused"
        ));
    }
    Ok(())
}

/// A topic's settings ready for use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicConfig {
    /// Whether records without a key are refused.
    pub(crate) compacted: bool,
    /// Replicas that acks=all needs.
    pub(crate) min_insync_replicas: i64,
    /// Bytes of a segment: no batch may be larger.
    pub(crate) segment_bytes: u64,
    log: LogConfig,
}

impl TopicConfig {
    /// Puts `overrides`, which passed [`check`], over the broker's defaults.
    pub(crate) fn new(config: &Config, overrides: &Overrides) -> Self {
        let settings = Settings { config, overrides };
        let log = settings.log();
        Self {
            compacted: log.compacted,
            min_insync_replicas: settings.whole("min.insync.replicas"),
            segment_bytes: log.segment_bytes,
            log,
        }
    }

    /// What the log needs to know of them.
    pub(crate) fn log_config(&self) -> LogConfig {
        self.log.clone()
    }

    /// As [`Self::log_config`], to look at.
    pub(crate) fn log(&self) -> &LogConfig {
        &self.log
    }
}

/// Overrides over defaults.
struct Settings<'a> {
    config: &'a Config,
    overrides: &'a Overrides,
}

impl Settings<'_> {
    fn text(&self, name: &str) -> String {
        match (self.overrides.get(name), key(name)) {
            (Some(value), _) => value.trim().to_owned(),
            (None, Some(key)) => key.default(self.config),
            (None, None) => String::new(),
        }
    }

    fn whole(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or_default()
    }

    fn size(&self, name: &str) -> u64 {
        u64::try_from(self.whole(name)).unwrap_or_default()
    }

    fn cleanup(&self, policy: &str) -> bool {
        let policies = self.text("cleanup.policy");
        policies.split(',').any(|word| word.trim() == policy)
    }

    fn compaction(&self) -> CompactionConfig {
        let ratio: f64 = self
            .text("min.cleanable.dirty.ratio")
            .parse()
            .unwrap_or_default();
        CompactionConfig {
            min_dirty_millionths: millionths(ratio),
            min_lag_ms: self.whole("min.compaction.lag.ms"),
            max_lag_ms: self.whole("max.compaction.lag.ms"),
            delete_retention_ms: self.whole("delete.retention.ms"),
        }
    }

    /// A segment that must be compacted must be closed first, as in Kafka.
    fn segment_ms(&self) -> i64 {
        let segment_ms = self.whole("segment.ms");
        if self.cleanup("compact") {
            segment_ms.min(self.whole("max.compaction.lag.ms"))
        } else {
            segment_ms
        }
    }

    fn log(&self) -> LogConfig {
        LogConfig {
            segment_bytes: self.size("segment.bytes"),
            segment_ms: self.segment_ms(),
            compaction: self.compaction(),
            index_interval_bytes: self.size("index.interval.bytes"),
            max_batch_bytes: usize::try_from(self.size("max.message.bytes")).unwrap_or(usize::MAX),
            timestamp_type: if self.text("message.timestamp.type") == "LogAppendTime" {
                TimestampType::LogAppendTime
            } else {
                TimestampType::CreateTime
            },
            timestamp_before_max_ms: self.whole("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: self.whole("message.timestamp.after.max.ms"),
            deletes: self.cleanup("delete"),
            compacted: self.cleanup("compact"),
            retention_ms: Some(self.whole("retention.ms")).filter(|age| *age >= 0),
            retention_bytes: u64::try_from(self.whole("retention.bytes")).ok(),
            flush_messages: self.whole("flush.messages"),
            flush_ms: self
                .whole("flush.ms")
                .min(millis(self.config.flush_interval)),
            visibility: if self.text(VISIBILITY) == "flushed" {
                Visibility::Flushed
            } else {
                Visibility::Committed
            },
            ..LogConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_passes_its_own_check_and_names_are_sorted() {
        let config = Config::default();
        for key in KEYS {
            assert_eq!(
                check(key.name, Some(&key.default(&config))),
                Ok(()),
                "{}",
                key.name
            );
        }
        assert!(KEYS.is_sorted_by_key(|key| key.name));
    }

    #[test]
    fn bad_values_are_refused_with_what_would_be_right() {
        for (name, value, part) in [
            ("retention.ms", "-2", "from -1"),
            ("retention.ms", "soon", "whole number"),
            ("max.message.bytes", "2147483648", "to 2147483647"),
            ("cleanup.policy", "shred", "list of delete, compact"),
            ("cleanup.policy", "", "list of delete, compact"),
            ("compression.type", "zstd", "one of producer"),
            ("message.timestamp.type", "createtime", "CreateTime"),
            ("min.cleanable.dirty.ratio", "1.5", "from 0 to 1"),
            ("preallocate", "yes", "true or false"),
            ("retention.minutes", "3", "unknown topic config name"),
        ] {
            let error = check(name, Some(value)).unwrap_err();
            assert!(error.contains(part), "{name}={value}: {error}");
        }
        assert!(check("retention.ms", None).unwrap_err().contains("null"));
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let lags = |least: &str, most: &str| -> Overrides {
            [
                ("min.compaction.lag.ms", least),
                ("max.compaction.lag.ms", most),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
        };
        assert_eq!(check_together(&lags("5", "5")), Ok(()));
        let error = check_together(&lags("6", "5")).unwrap_err();
        assert!(error.contains("min.compaction.lag.ms (6)"), "{error}");
    }

    #[test]
    fn settings_that_would_lose_groups_are_refused_of_their_topic() {
        let config = Config::default();
        let checked = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            let overrides = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            check_offsets_topic(&config, &overrides.collect())
        };
        let compact = ("cleanup.policy", "compact");
        assert_eq!(checked(&[compact]), Ok(()));
        assert_eq!(checked(&[compact, ("retention.ms", "1")]), Ok(()));
        assert_eq!(
            checked(&[compact, ("max.message.bytes", "8000000")]),
            Ok(())
        );
        for (refused, part) in [
            (vec![], "must be compact"),
            (vec![("cleanup.policy", "delete")], "must be compact"),
            (
                vec![("cleanup.policy", "compact,delete")],
                "must be compact",
            ),
            (
                vec![compact, ("max.message.bytes", "1000")],
                "(1000) must not be below",
            ),
        ] {
            let error = checked(&refused).unwrap_err();
            assert!(error.contains(part), "{refused:?}: {error}");
        }
    }

    #[test]
    fn overrides_go_over_the_brokers_defaults() {
        let overrides: Overrides = [
            ("cleanup.policy", "compact, delete"),
            ("message.timestamp.type", "LogAppendTime"),
            ("max.message.bytes", "1000"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let topic = TopicConfig::new(&Config::default(), &overrides);
        assert!(topic.compacted);
        let log = topic.log_config();
        assert_eq!(log.timestamp_type, TimestampType::LogAppendTime);
        assert_eq!(log.max_batch_bytes, 1000);
        assert_eq!(log.segment_bytes, 1 << 30);
        assert_eq!(log.segment_ms, 168 * 3_600_000);
        assert!(!TopicConfig::new(&Config::default(), &Overrides::new()).compacted);
        assert!(log.compacted && log.deletes);
        assert_eq!(log.compaction, CompactionConfig::default());
        assert_eq!(log.retention_ms, Some(168 * 3_600_000));
        assert_eq!((log.retention_bytes, log.flush_ms), (None, 60_000));
    }
}
