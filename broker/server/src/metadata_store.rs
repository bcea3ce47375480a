//! Where the cluster's metadata lives: one trait, and the embedded broker's implementation in two files.
//!
//! `meta.properties` says whose directory it is, in the style of Apache Kafka's file of that name;
//! `topics.json` holds topics, settings, leader epochs and the producer ids given out. Both are replaced
//! whole and atomically, both carry format, version and checksum.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use broker_protocol::{TopicId, TopicName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    durable::replace_file,
    error::Error,
    topic_config::{self, Overrides},
};

/// The file of topics in the data directory.
pub(crate) const FILE_NAME: &str = "topics.json";
/// The file that names cluster and node.
const PROPERTIES: &str = "meta.properties";
const FORMAT: &str = "logferry-topics";
const VERSION: u64 = 1;

/// One topic as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicRecord {
    /// Made with the topic, never reused.
    pub(crate) topic_id: Uuid,
    /// Leader epoch of each partition, by index.
    pub(crate) leader_epochs: Vec<i32>,
    /// Settings that differ from the broker's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) configs: Overrides,
}

/// A topic that is deleted in the metadata while its directories may still be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deleting {
    /// The topic's name when it lived.
    pub(crate) topic: String,
    /// The topic's id: a topic made again under the name has another.
    pub(crate) topic_id: Uuid,
}

/// The cluster's metadata. Every change is durable and atomic when it returns `Ok`, and not made otherwise.
///
/// Calls block on the disk or the network: not for a runtime thread. The embedded broker keeps it in a file
/// ([`EmbeddedMetadata`]); a cluster keeps it in ZooKeeper.
pub(crate) trait MetadataStore: Debug + Send + Sync {
    /// Identity of the cluster, made once.
    fn cluster_id(&self) -> String;
    /// All topics.
    fn topics(&self) -> BTreeMap<TopicName, TopicRecord>;
    /// Topics whose directories are still to be removed.
    fn deleting(&self) -> Vec<Deleting>;
    /// Adds a topic; one of that name is an error.
    fn create_topic(&self, name: &TopicName, record: &TopicRecord) -> Result<(), Error>;
    /// Replaces the record of a topic; none of that name is an error.
    fn update_topic(&self, name: &TopicName, record: &TopicRecord) -> Result<(), Error>;
    /// Takes a topic away and remembers it in [`Self::deleting`].
    fn delete_topic(&self, name: &TopicName) -> Result<(), Error>;
    /// Forgets a topic whose directories are gone.
    fn finish_delete(&self, topic_id: Uuid) -> Result<(), Error>;
    /// Raises the leader epoch of every partition by one, in one step.
    fn raise_leader_epochs(&self) -> Result<(), Error>;
    /// Takes `count` producer ids that were never given out and never will be again.
    fn reserve_producer_ids(&self, count: u32) -> Result<Range<i64>, Error>;
}

/// Metadata of a single broker, in its data directory.
#[derive(Debug)]
pub(crate) struct EmbeddedMetadata {
    path: PathBuf,
    cluster_id: String,
    body: Mutex<Body>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    next_producer_id: i64,
    topics: BTreeMap<String, TopicRecord>,
    deleting: Vec<Deleting>,
}

impl EmbeddedMetadata {
    /// Reads the metadata in `data_dir`, which the caller has locked, or makes it.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, has another version or belongs to another node.
    pub(crate) fn open(data_dir: &Path, node_id: i32) -> Result<Self, Error> {
        let cluster_id = open_properties(&data_dir.join(PROPERTIES), node_id)?;
        let path = data_dir.join(FILE_NAME);
        let body = match fs::read(&path) {
            Ok(content) => parse(&content).map_err(|reason| Error::Damaged {
                path: path.clone(),
                reason,
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Body::default(),
            Err(source) => {
                return Err(Error::File {
                    operation: "read",
                    path,
                    source,
                });
            }
        };
        Ok(Self {
            path,
            cluster_id,
            body: Mutex::new(body),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Body> {
        // A change is made on a copy and put in place whole, so a panic elsewhere leaves nothing half done.
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Body) -> Result<T, Error>) -> Result<T, Error> {
        let mut body = self.lock();
        let mut changed = body.clone();
        let result = edit(&mut changed)?;
        replace_file(&self.path, render(&changed).as_bytes()).map_err(|source| Error::File {
            operation: "write",
            path: self.path.clone(),
            source,
        })?;
        *body = changed;
        Ok(result)
    }
}

impl MetadataStore for EmbeddedMetadata {
    fn cluster_id(&self) -> String {
        self.cluster_id.clone()
    }

    fn topics(&self) -> BTreeMap<TopicName, TopicRecord> {
        let body = self.lock();
        let named = |(name, record): (&String, &TopicRecord)| {
            Some((TopicName::new(name.as_str()).ok()?, record.clone()))
        };
        body.topics.iter().filter_map(named).collect()
    }

    fn deleting(&self) -> Vec<Deleting> {
        self.lock().deleting.clone()
    }

    fn create_topic(&self, name: &TopicName, record: &TopicRecord) -> Result<(), Error> {
        self.change(|body| {
            if body.topics.contains_key(name.as_str()) {
                return Err(Error::TopicExists {
                    topic: name.to_string(),
                });
            }
            body.topics.insert(name.to_string(), record.clone());
            Ok(())
        })
    }

    fn update_topic(&self, name: &TopicName, record: &TopicRecord) -> Result<(), Error> {
        self.change(|body| match body.topics.get_mut(name.as_str()) {
            Some(stored) => {
                *stored = record.clone();
                Ok(())
            }
            None => Err(Error::NoSuchTopic {
                topic: name.to_string(),
            }),
        })
    }

    fn delete_topic(&self, name: &TopicName) -> Result<(), Error> {
        self.change(|body| match body.topics.remove(name.as_str()) {
            Some(TopicRecord { topic_id, .. }) => {
                body.deleting.push(Deleting {
                    topic: name.to_string(),
                    topic_id,
                });
                Ok(())
            }
            None => Err(Error::NoSuchTopic {
                topic: name.to_string(),
            }),
        })
    }

    fn finish_delete(&self, topic_id: Uuid) -> Result<(), Error> {
        self.change(|body| {
            body.deleting
                .retain(|deleting| deleting.topic_id != topic_id);
            Ok(())
        })
    }

    fn raise_leader_epochs(&self) -> Result<(), Error> {
        self.change(|body| {
            for epoch in body
                .topics
                .values_mut()
                .flat_map(|topic| &mut topic.leader_epochs)
            {
                *epoch = epoch.saturating_add(1);
            }
            Ok(())
        })
    }

    fn reserve_producer_ids(&self, count: u32) -> Result<Range<i64>, Error> {
        self.change(|body| {
            let start = body.next_producer_id;
            body.next_producer_id = start.saturating_add(i64::from(count));
            Ok(start..body.next_producer_id)
        })
    }
}

/// `{"format":…,"version":…,"checksum":"crc32c:…","body":{…}}`; the checksum is over the body as
/// `serde_json` prints it without white space, so that re-indenting the file does no harm.
fn render(body: &Body) -> String {
    let text = serde_json::json!(body).to_string();
    format!(
        "{{\"format\":\"{FORMAT}\",\"version\":{VERSION},\"checksum\":\"{}\",\n\"body\":{text}}}\n",
        checksum(text.as_bytes())
    )
}

fn checksum(bytes: &[u8]) -> String {
    format!("crc32c:{:08x}", crc32c::crc32c(bytes))
}

fn parse(content: &[u8]) -> Result<Body, String> {
    let value: Value =
        serde_json::from_slice(content).map_err(|error| format!("it is not JSON: {error}"))?;
    let field = |name: &str| {
        value
            .get(name)
            .ok_or_else(|| format!("`{name}` is missing"))
    };
    if field("format")?.as_str() != Some(FORMAT) {
        return Err(format!("`format` is not {FORMAT}"));
    }
    let version = field("version")?;
    if version.as_u64() != Some(VERSION) {
        return Err(format!(
            "version {version} is not the {VERSION} that this build reads"
        ));
    }
    let body = field("body")?;
    let expected = checksum(body.to_string().as_bytes());
    let stored = field("checksum")?;
    if stored.as_str() != Some(&expected) {
        return Err(format!(
            "its checksum is {stored}, its content has {expected}"
        ));
    }
    let body = Body::deserialize(body).map_err(|error| format!("its body is odd: {error}"))?;
    for (name, record) in &body.topics {
        if TopicName::new(name.as_str()).is_err() {
            return Err(format!("`{name}` is no topic name"));
        }
        // One that is not understood must not be taken for zero: that would delete records.
        for (key, value) in &record.configs {
            topic_config::check(key, Some(value))
                .map_err(|reason| format!("topic {name}: {reason}"))?;
        }
    }
    Ok(body)
}

/// Reads `meta.properties`, or makes it with a new cluster id; returns the cluster id.
fn open_properties(path: &Path, node_id: i32) -> Result<String, Error> {
    let content = match fs::read_to_string(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let cluster_id = TopicId(Uuid::new_v4()).to_string();
            let text = render_properties(&cluster_id, node_id);
            replace_file(path, text.as_bytes()).map_err(|source| Error::File {
                operation: "write",
                path: path.to_owned(),
                source,
            })?;
            return Ok(cluster_id);
        }
        Err(source) => {
            return Err(Error::File {
                operation: "read",
                path: path.to_owned(),
                source,
            });
        }
    };
    let (cluster_id, stored) = parse_properties(&content).map_err(|reason| Error::Damaged {
        path: path.to_owned(),
        reason,
    })?;
    if stored != node_id {
        return Err(Error::OtherNode {
            path: path.to_owned(),
            stored,
            configured: node_id,
        });
    }
    Ok(cluster_id)
}

fn render_properties(cluster_id: &str, node_id: i32) -> String {
    let body = format!("version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n");
    let checksum = checksum(body.as_bytes());
    format!("#logferry broker: whose directory this is\n{body}checksum={checksum}\n")
}

fn parse_properties(content: &str) -> Result<(String, i32), String> {
    let value = |key: &str| {
        let mut lines = content.lines().filter_map(|line| line.split_once('='));
        lines
            .find_map(|(name, value)| (name.trim() == key).then(|| value.trim()))
            .ok_or_else(|| format!("`{key}` is missing"))
    };
    let version = value("version")?;
    if version != "1" {
        return Err(format!(
            "version {version} is not the 1 that this build reads"
        ));
    }
    let cluster_id = value("cluster.id")?;
    let node_id = value("node.id")?;
    let node_id = node_id
        .parse()
        .map_err(|_| format!("node.id `{node_id}` is no number"))?;
    let expected = render_properties(cluster_id, node_id);
    if expected.lines().next_back() != Some(&format!("checksum={}", value("checksum")?)) {
        return Err("its checksum does not fit its content".to_owned());
    }
    Ok((cluster_id.to_owned(), node_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    fn record(partitions: usize) -> TopicRecord {
        TopicRecord {
            topic_id: Uuid::new_v4(),
            leader_epochs: vec![0; partitions],
            configs: [("retention.ms".to_owned(), "5".to_owned())].into(),
        }
    }

    #[test]
    fn everything_survives_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedMetadata::open(folder.path(), 7).unwrap();
        let (kept, gone) = (record(2), record(1));
        store.create_topic(&topic("kept"), &kept).unwrap();
        store.create_topic(&topic("gone"), &gone).unwrap();
        store.delete_topic(&topic("gone")).unwrap();
        store.raise_leader_epochs().unwrap();
        assert_eq!(store.reserve_producer_ids(10).unwrap(), 0..10);

        let again = EmbeddedMetadata::open(folder.path(), 7).unwrap();
        assert_eq!(again.cluster_id(), store.cluster_id());
        let expected = TopicRecord {
            leader_epochs: vec![1, 1],
            ..kept
        };
        assert_eq!(again.topics(), [(topic("kept"), expected)].into());
        let deleting = Deleting {
            topic: "gone".to_owned(),
            topic_id: gone.topic_id,
        };
        assert_eq!(again.deleting(), [deleting]);
        assert_eq!(again.reserve_producer_ids(5).unwrap(), 10..15);
        again.finish_delete(gone.topic_id).unwrap();
        assert_eq!(
            EmbeddedMetadata::open(folder.path(), 7).unwrap().deleting(),
            []
        );
    }

    #[test]
    fn a_setting_that_is_not_understood_is_told_by_name() {
        for (key, value) in [("retention.ms", "soon"), ("of.a.later.version", "1")] {
            let folder = tempfile::tempdir().unwrap();
            let store = EmbeddedMetadata::open(folder.path(), 1).unwrap();
            let odd = TopicRecord {
                configs: [(key.to_owned(), value.to_owned())].into(),
                ..record(1)
            };
            store.create_topic(&topic("orders"), &odd).unwrap();
            let error = EmbeddedMetadata::open(folder.path(), 1).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("topic orders") && text.contains(key),
                "{text}"
            );
        }
    }

    #[test]
    fn changes_of_the_wrong_topic_are_refused_and_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedMetadata::open(folder.path(), 1).unwrap();
        store.create_topic(&topic("a"), &record(1)).unwrap();
        let before = fs::read(folder.path().join(FILE_NAME)).unwrap();
        let exists = store.create_topic(&topic("a"), &record(1)).unwrap_err();
        assert!(matches!(exists, Error::TopicExists { .. }), "{exists}");
        let missing = store.update_topic(&topic("b"), &record(1)).unwrap_err();
        assert!(matches!(missing, Error::NoSuchTopic { .. }), "{missing}");
        let missing = store.delete_topic(&topic("b")).unwrap_err();
        assert!(matches!(missing, Error::NoSuchTopic { .. }), "{missing}");
        assert_eq!(fs::read(folder.path().join(FILE_NAME)).unwrap(), before);
    }

    #[test]
    fn a_change_that_cannot_be_written_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedMetadata::open(folder.path(), 1).unwrap();
        fs::create_dir(folder.path().join("topics.new")).unwrap();
        let error = store.create_topic(&topic("a"), &record(1)).unwrap_err();
        assert!(
            matches!(
                error,
                Error::File {
                    operation: "write",
                    ..
                }
            ),
            "{error}"
        );
        assert!(store.topics().is_empty());
    }

    #[test]
    fn damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let store = EmbeddedMetadata::open(folder.path(), 1).unwrap();
        store.create_topic(&topic("a"), &record(1)).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        for (bad, reason) in [
            (good.replace("retention.ms", "retention.MS"), "checksum"),
            (good.replace("\"version\":1", "\"version\":2"), "version 2"),
            (good.replace(FORMAT, "other"), "format"),
            (good.chars().take(good.len() / 2).collect(), "not JSON"),
            (String::new(), "not JSON"),
        ] {
            fs::write(&path, bad).unwrap();
            let error = EmbeddedMetadata::open(folder.path(), 1)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(reason) && error.contains(FILE_NAME),
                "{error}"
            );
        }
    }

    #[test]
    fn another_nodes_directory_and_damaged_properties_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        EmbeddedMetadata::open(folder.path(), 1).unwrap();
        let error = EmbeddedMetadata::open(folder.path(), 2).unwrap_err();
        assert!(
            matches!(
                error,
                Error::OtherNode {
                    stored: 1,
                    configured: 2,
                    ..
                }
            ),
            "{error}"
        );
        let path = folder.path().join(PROPERTIES);
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, good.replace("cluster.id=", "cluster.id=x")).unwrap();
        let error = EmbeddedMetadata::open(folder.path(), 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("checksum"), "{error}");
    }

    #[test]
    fn version_one_still_opens() {
        let folder = tempfile::tempdir().unwrap();
        let golden = include_bytes!("../tests/data/v1/topics.json");
        fs::write(folder.path().join(FILE_NAME), golden).unwrap();
        let properties = include_bytes!("../tests/data/v1/meta.properties");
        fs::write(folder.path().join(PROPERTIES), properties).unwrap();
        let store = EmbeddedMetadata::open(folder.path(), 1).unwrap();
        assert_eq!(store.cluster_id(), "AAAAAAAAAAAAAAAAAAAAAQ");
        let topics = store.topics();
        assert_eq!(topics["orders"].leader_epochs, [0, 2]);
        assert_eq!(topics["orders"].configs["cleanup.policy"], "compact");
        assert_eq!(store.deleting()[0].topic, "old");
        assert_eq!(store.reserve_producer_ids(1).unwrap(), 3000..3001);
    }
}
