//! One member of a group.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use broker_protocol::{
    ByteString,
    messages::{JoinGroupResponse, SyncGroupResponse},
};
use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};
use uuid::Uuid;

/// Where an answer goes that may have to wait. Dropped unsent, its client is told to look for the coordinator.
pub(crate) type Answer<T> = oneshot::Sender<T>;

/// Answers. A client that has left does not hear it, and is missed at the next deadline.
pub(crate) fn reply<T>(answer: Answer<T>, response: T) {
    drop(answer.send(response));
}

/// A copy that does not keep the memory of the request it came in.
pub(crate) fn own(text: &ByteString) -> ByteString {
    text.to_string().into()
}

/// Who a member is and what it can do, as its last join says.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    /// Its static name (KIP-345).
    pub(crate) instance_id: Option<ByteString>,
    /// What its client calls itself.
    pub(crate) client_id: ByteString,
    /// Where it joined from.
    pub(crate) client_host: ByteString,
    /// Time without a sign of life after which it is removed.
    pub(crate) session_timeout: Duration,
    /// Time it has to join again in a rebalance.
    pub(crate) rebalance_timeout: Duration,
    /// Names and metadata of its protocols, the dearest first.
    pub(crate) protocols: Vec<(ByteString, Bytes)>,
}

impl Profile {
    /// The metadata for a protocol, empty if the member does not know it.
    pub(crate) fn metadata(&self, protocol: &str) -> Bytes {
        let mut protocols = self.protocols.iter();
        let found = protocols.find(|(name, _)| **name == *protocol);
        found.map_or_else(Bytes::new, |(_, metadata)| metadata.clone())
    }

    /// Bytes that it takes in a stored group at least: without an assignment, with the shortest of its metadata.
    pub(crate) fn least_stored_bytes(&self, member_id: &str) -> usize {
        let metadata = self.protocols.iter().map(|(_, metadata)| metadata.len());
        let instance_id = self.instance_id.as_ref().map_or(0, |name| name.len());
        let texts = member_id.len() + instance_id + self.client_id.len() + self.client_host.len();
        // Four lengths of texts, two of bytes, two timeouts.
        texts + metadata.min().unwrap_or(0) + 4 * 2 + 2 * 4 + 2 * 4
    }

    /// Whether it knows a protocol.
    pub(crate) fn knows(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|(name, _)| **name == *protocol)
    }
}

/// A member of a group.
#[derive(Debug)]
pub(crate) struct Member {
    /// As its last join says.
    pub(crate) profile: Profile,
    /// Its part of the assignment; empty until there is one.
    pub(crate) assignment: Bytes,
    /// When it last gave a sign of life.
    pub(crate) seen: Instant,
    /// Its join that waits for the generation to be complete.
    pub(crate) joining: Option<Answer<JoinGroupResponse>>,
    /// Its sync that waits for the leader's assignment.
    pub(crate) syncing: Option<Answer<SyncGroupResponse>>,
}

impl Member {
    pub(crate) fn new(profile: Profile, seen: Instant) -> Self {
        Self {
            profile,
            assignment: Bytes::new(),
            seen,
            joining: None,
            syncing: None,
        }
    }

    /// When it is removed unless it gives a sign of life before; never while it waits for an answer.
    pub(crate) fn expires(&self) -> Option<Instant> {
        let waits = self.joining.is_some() || self.syncing.is_some();
        (!waits).then(|| self.seen + self.profile.session_timeout)
    }
}

/// A new member's id: what its client or static name calls it, and something unique.
pub(crate) fn new_member_id(profile: &Profile) -> ByteString {
    let name = profile.instance_id.as_ref().unwrap_or(&profile.client_id);
    format!("{name}-{}", Uuid::new_v4()).into()
}

/// The protocol that all members know and most of them prefer; of several the first in the alphabet. `None` if there
/// is none that all know.
pub(crate) fn vote(members: &[&Profile]) -> Option<ByteString> {
    let mut known: HashMap<&ByteString, usize> = HashMap::new();
    for member in members {
        let names: BTreeSet<&ByteString> = member.protocols.iter().map(|(name, _)| name).collect();
        for name in names {
            *known.entry(name).or_default() += 1;
        }
    }
    let mut votes: HashMap<&ByteString, usize> = HashMap::new();
    for member in members {
        let mut names = member.protocols.iter().map(|(name, _)| name);
        let choice = names.find(|name| known.get(name) == Some(&members.len()))?;
        *votes.entry(choice).or_default() += 1;
    }
    let best = votes
        .into_iter()
        .max_by(|(a, a_votes), (b, b_votes)| a_votes.cmp(b_votes).then_with(|| b.cmp(a)));
    best.map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(protocols: &[&str]) -> Profile {
        let protocol = |name: &&str| (ByteString::from(*name), Bytes::from((*name).to_owned()));
        Profile {
            instance_id: None,
            client_id: "tool".into(),
            client_host: "127.0.0.1".into(),
            session_timeout: Duration::from_secs(10),
            rebalance_timeout: Duration::from_secs(60),
            protocols: protocols.iter().map(protocol).collect(),
        }
    }

    #[test]
    fn the_protocol_that_all_know_and_most_prefer_wins() {
        let members = [
            profile(&["sticky", "range", "roundrobin"]),
            profile(&["roundrobin", "range"]),
            profile(&["range", "roundrobin"]),
        ];
        assert_eq!(vote(&members.each_ref()).as_deref(), Some("range"));
        let torn = [profile(&["b", "a"]), profile(&["a", "b"])];
        assert_eq!(vote(&torn.each_ref()).as_deref(), Some("a"));
        let strangers = [profile(&["a"]), profile(&["b"])];
        assert_eq!(vote(&strangers.each_ref()), None);
        let repetitive = [profile(&["a", "a", "b"]), profile(&["b"])];
        assert_eq!(vote(&repetitive.each_ref()).as_deref(), Some("b"));
        assert_eq!(vote(&[]), None);
    }

    #[test]
    fn metadata_belongs_to_its_protocol() {
        let member = profile(&["range", "sticky"]);
        assert_eq!(member.metadata("sticky"), "sticky");
        assert_eq!(member.metadata("other"), "");
    }

    #[test]
    fn member_ids_are_unique_and_begin_with_the_clients_name() {
        let mut client = profile(&["range"]);
        let (one, two) = (new_member_id(&client), new_member_id(&client));
        assert!(one.starts_with("tool-") && one != two, "{one} {two}");
        client.instance_id = Some("static".into());
        assert!(new_member_id(&client).starts_with("static-"));
    }
}
