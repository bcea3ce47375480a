//! The small text files beside the segments, in Apache Kafka's formats.
//!
//! ```text
//! recovery-point-, log-start-, cleaner-offset-checkpoint            leader-epoch-checkpoint     partition.metadata
//! 0                       version                                   0                           version: 0
//! 1                       number of lines that follow               1                           topic_id: <22 chars>
//! orders 3 1042           topic partition offset                    7 1042   epoch and start
//! ```
//! `.kafka_cleanshutdown` holds `{"version":0,"brokerEpoch":N}`. All are replaced by rename, so a crash leaves the old
//! or the new one. (`CheckpointFile`, `OffsetCheckpointFile`, `PartitionMetadataFile`, `CleanShutdownFileHandler` in
//! Kafka's sources.)

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use broker_protocol::ids::{TopicId, TopicName};

use crate::disk::{Disk, read_small, replace_small};
use crate::error::{Error, Result};
use crate::topic_partition::TopicPartition;

/// Recovery points, per log directory.
pub(crate) const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
/// Log start offsets above their first segment's base, per log directory.
pub(crate) const LOG_STARTS: &str = "log-start-offset-checkpoint";
/// Behind what has been compacted, per log directory.
pub(crate) const CLEANED_TO: &str = "cleaner-offset-checkpoint";
/// Leader epochs, per partition.
pub(crate) const LEADER_EPOCHS: &str = "leader-epoch-checkpoint";
/// Topic id, per partition.
pub(crate) const PARTITION_METADATA: &str = "partition.metadata";
/// There only between a clean shutdown and the next start.
pub(crate) const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";

/// Longest of these files that is read, in bytes: a million partitions with long names.
const MAX_BYTES: usize = 300 << 20;
const VERSION: &str = "0";

/// Offsets by partition, as the per-directory checkpoints hold them.
pub(crate) type Offsets = BTreeMap<TopicPartition, i64>;

/// Reads a per-directory checkpoint; an absent file is an empty one.
pub(crate) fn read_offsets(disk: &dyn Disk, path: &Path) -> Result<Offsets> {
    let mut offsets = Offsets::new();
    read_lines(disk, path, |fields| match fields {
        [topic, partition, offset] => {
            let topic = TopicName::new(*topic).ok()?;
            let partition = partition.parse().ok().filter(|partition| *partition >= 0)?;
            let offset = offset.parse().ok().filter(|offset| *offset >= 0)?;
            offsets.insert(TopicPartition { topic, partition }, offset);
            Some(())
        }
        _ => None,
    })?;
    Ok(offsets)
}

/// Replaces a per-directory checkpoint durably.
pub(crate) fn write_offsets(disk: &dyn Disk, path: &Path, offsets: &Offsets) -> Result<()> {
    let lines = offsets
        .iter()
        .map(|(id, offset)| format!("{} {} {offset}", id.topic, id.partition));
    write_lines(disk, path, lines)
}

/// Reads pairs of leader epoch and start offset; an absent file holds none. The order is checked by the caller.
pub(crate) fn read_epochs(disk: &dyn Disk, path: &Path) -> Result<Vec<(i32, i64)>> {
    let mut epochs = Vec::new();
    read_lines(disk, path, |fields| match fields {
        [epoch, start_offset] => {
            epochs.push((epoch.parse().ok()?, start_offset.parse().ok()?));
            Some(())
        }
        _ => None,
    })?;
    Ok(epochs)
}

/// Replaces the leader epochs of a partition durably.
pub(crate) fn write_epochs(disk: &dyn Disk, path: &Path, epochs: &[(i32, i64)]) -> Result<()> {
    write_lines(
        disk,
        path,
        epochs
            .iter()
            .map(|(epoch, start)| format!("{epoch} {start}")),
    )
}

/// The topic id of a partition; an absent file means none was given.
pub(crate) fn read_topic_id(disk: &dyn Disk, path: &Path) -> Result<Option<TopicId>> {
    let Some(text) = read_text(disk, path)? else {
        return Ok(None);
    };
    let malformed = |line, reason| Error::MalformedFile {
        path: path.to_owned(),
        line,
        reason,
    };
    let mut lines = text.lines();
    if lines.next().map(str::trim_end) != Some("version: 0") {
        return Err(malformed(1, "expected \"version: 0\""));
    }
    let id = lines
        .next()
        .and_then(|line| line.strip_prefix("topic_id: "))
        .and_then(|id| id.trim_end().parse::<TopicId>().ok())
        .ok_or_else(|| malformed(2, "expected \"topic_id: \" and 22 characters of base64"))?;
    Ok((id != TopicId::ZERO).then_some(id))
}

/// Writes the topic id of a partition durably.
pub(crate) fn write_topic_id(disk: &dyn Disk, path: &Path, id: TopicId) -> Result<()> {
    replace(disk, path, &format!("version: 0\ntopic_id: {id}"))
}

/// Writes the marker of a clean shutdown durably.
pub(crate) fn write_clean_shutdown(disk: &dyn Disk, path: &Path, broker_epoch: i64) -> Result<()> {
    replace(
        disk,
        path,
        &format!("{{\"version\":0,\"brokerEpoch\":{broker_epoch}}}"),
    )
}

fn replace(disk: &dyn Disk, path: &Path, content: &str) -> Result<()> {
    replace_small(disk, path, content.as_bytes())
        .map_err(|source| Error::io("replace", path, source))
}

fn write_lines(
    disk: &dyn Disk,
    path: &Path,
    lines: impl ExactSizeIterator<Item = String>,
) -> Result<()> {
    let mut text = format!("{VERSION}\n{}\n", lines.len());
    for line in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
    }
    replace(disk, path, &text)
}

fn read_text(disk: &dyn Disk, path: &Path) -> Result<Option<String>> {
    match read_small(disk, path, MAX_BYTES) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Error::MalformedFile {
                path: path.to_owned(),
                line: 1,
                reason: "the file is not text",
            }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// Reads version, count and lines; `take` gets the fields of each and returns `None` to refuse it.
fn read_lines(
    disk: &dyn Disk,
    path: &Path,
    mut take: impl FnMut(&[&str]) -> Option<()>,
) -> Result<()> {
    let Some(text) = read_text(disk, path)? else {
        return Ok(());
    };
    let malformed = |line, reason| Error::MalformedFile {
        path: path.to_owned(),
        line,
        reason,
    };
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some(VERSION) {
        return Err(malformed(1, "expected version 0"));
    }
    let count: usize = lines
        .next()
        .and_then(|line| line.trim().parse().ok())
        .ok_or_else(|| malformed(2, "expected the number of entries"))?;
    let mut found = 0;
    for line in lines {
        let fields: Vec<&str> = line.split_whitespace().collect();
        take(&fields).ok_or_else(|| malformed(found + 3, "not an entry"))?;
        found += 1;
    }
    if found != count {
        return Err(malformed(2, "the number of entries is wrong"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::RealDisk;

    fn id(topic: &str, partition: i32) -> TopicPartition {
        TopicPartition::new(TopicName::new(topic).unwrap(), partition)
    }

    #[test]
    fn offsets_round_trip_in_kafkas_format() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RECOVERY_POINTS);
        assert!(read_offsets(&RealDisk, &path).unwrap().is_empty());
        let offsets = Offsets::from([(id("orders", 3), 1042), (id("a-b", 0), 0)]);
        write_offsets(&RealDisk, &path, &offsets).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "0\n2\na-b 0 0\norders 3 1042\n"
        );
        assert_eq!(read_offsets(&RealDisk, &path).unwrap(), offsets);
    }

    #[test]
    fn malformed_checkpoints_are_refused_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOG_STARTS);
        for (text, expected_line) in [
            ("1\n0\n", 1),
            ("0\nmany\n", 2),
            ("0\n2\na 0 1\n", 2),
            ("0\n1\na 0 1\nb 0 1\n", 2),
            ("0\n1\na 0\n", 3),
            ("0\n2\na 0 1\nb 0 -1\n", 4),
            ("\u{0}\u{0}\u{0}", 1),
        ] {
            fs::write(&path, text).unwrap();
            let error = read_offsets(&RealDisk, &path).unwrap_err();
            let Error::MalformedFile { line, .. } = error else {
                panic!("{error:?}")
            };
            assert_eq!(line, expected_line, "{text:?}");
        }
    }

    #[test]
    fn partition_metadata_and_clean_marker_are_spelt_as_kafka_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PARTITION_METADATA);
        assert_eq!(read_topic_id(&RealDisk, &path).unwrap(), None);
        let topic_id: TopicId = "dGhpcyBpcyBhIHRlc3QhIQ".parse().unwrap();
        write_topic_id(&RealDisk, &path, topic_id).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "version: 0\ntopic_id: dGhpcyBpcyBhIHRlc3QhIQ"
        );
        assert_eq!(read_topic_id(&RealDisk, &path).unwrap(), Some(topic_id));
        fs::write(&path, "version: 1\ntopic_id: dGhpcyBpcyBhIHRlc3QhIQ").unwrap();
        assert!(read_topic_id(&RealDisk, &path).is_err());

        let marker = dir.path().join(CLEAN_SHUTDOWN);
        write_clean_shutdown(&RealDisk, &marker, -1).unwrap();
        assert_eq!(
            fs::read_to_string(&marker).unwrap(),
            r#"{"version":0,"brokerEpoch":-1}"#
        );
    }
}
