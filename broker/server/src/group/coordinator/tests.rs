//! Topics that are deleted before the groups have been read.

use std::path::Path;

use broker_protocol::TopicName;

use super::*;
use crate::{Broker, broker::Shared, topic_config::Overrides};

fn open(folder: &Path) -> Arc<Shared> {
    let config = crate::Config {
        data_dir: folder.to_owned(),
        ..crate::Config::default()
    };
    Arc::clone(Broker::open(config).unwrap().shared())
}

fn create(shared: &Shared, topic: &str) {
    let name = TopicName::new(topic).unwrap();
    shared.topics.create(&name, 1, Overrides::new()).unwrap();
}

/// Offsets of `topics`, committed by a broker that has ended since.
async fn committed(folder: &Path, topics: &[&str]) {
    let shared = open(folder);
    shared.groups.load().await;
    let offsets = topics.iter().map(|topic| {
        create(&shared, topic);
        let committed = Committed {
            offset: 7,
            leader_epoch: 0,
            metadata: ByteString::new(),
            committed_ms: shared.clock.now_ms(),
        };
        (ByteString::from(*topic), 0, committed)
    });
    let outside = Caller {
        member_id: ByteString::new(),
        instance_id: None,
        generation: -1,
    };
    let group = ByteString::from_static("tool");
    let offsets = offsets.collect();
    let done = shared.groups.commit(&group, &outside, offsets).await;
    done.unwrap();
}

fn offset(shared: &Shared, topic: &str) -> Option<i64> {
    let look = |group: &Group| group.offsets.get(topic, 0).map(|found| found.offset);
    shared.groups.look("tool", look).unwrap().flatten()
}

#[tokio::test]
async fn a_topic_deleted_while_groups_are_read_leaves_no_offsets_to_one_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    committed(folder.path(), &["gone", "kept"]).await;
    for _ in 0..2 {
        let shared = open(folder.path());
        if shared.topics.delete("gone").is_ok() {
            shared.groups.forget_topic("gone");
            create(&shared, "gone");
        }
        shared.groups.load().await;
        assert_eq!(offset(&shared, "gone"), None);
        assert_eq!(offset(&shared, "kept"), Some(7));
    }
}

#[tokio::test]
async fn a_topic_whose_deletion_a_kill_cut_short_leaves_no_offsets() {
    let folder = tempfile::tempdir().unwrap();
    committed(folder.path(), &["gone", "kept"]).await;
    open(folder.path()).topics.delete("gone").unwrap();
    for _ in 0..2 {
        let shared = open(folder.path());
        shared.groups.load().await;
        if shared.topics.get("gone").is_none() {
            create(&shared, "gone");
        }
        assert_eq!(offset(&shared, "gone"), None);
        assert_eq!(offset(&shared, "kept"), Some(7));
    }
}
