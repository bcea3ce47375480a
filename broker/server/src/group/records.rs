//! What a record of `__consumer_offsets` says, in Apache Kafka's format.
//!
//! ```text
//! key:   version i16   0, 1: group, topic, partition          2: group
//! value: version i16   0–3: offset, leader epoch (3),         0–3: protocol type, generation, protocol, leader, when (2),
//!                           note, when committed, expiry (1)        members: id, static name (3), client, host,
//!                                                                   timeouts, metadata, assignment
//! ```
//! Written are key versions 1 and 2 with value version 3; read is every version above. A value of null takes back what
//! its key says. (`OffsetCommitKey`, `OffsetCommitValue`, `GroupMetadataKey`, `GroupMetadataValue` in Kafka's message
//! definitions.)

use broker_protocol::{
    ByteString, DecodeError,
    primitives::{LengthForm, get_bytes, get_i16, get_i32, get_i64, get_length, get_string},
};
use bytes::{BufMut, Bytes, BytesMut};

const OFFSET_KEY: i16 = 1;
const GROUP_KEY: i16 = 2;
const OFFSET_VALUE: i16 = 3;
const GROUP_VALUE: i16 = 3;

/// Why a record says nothing to this broker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// Bytes that end too early or have impossible lengths.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// A version of a later Kafka.
    #[error("{what} of version {version} is not known")]
    Version { what: &'static str, version: i16 },
    /// A string that is null and must not be.
    #[error("{0} is null")]
    Null(&'static str),
    /// No key at all.
    #[error("the record has no key")]
    NoKey,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committed {
    /// Offset the group reads next.
    pub(crate) offset: i64,
    /// Leader epoch of the last record read, −1 when unknown.
    pub(crate) leader_epoch: i32,
    /// What the committer noted.
    pub(crate) metadata: ByteString,
    /// Wall clock at the commit, in milliseconds since 1970.
    pub(crate) committed_ms: i64,
}

/// A generation of a group, as it is stored when it is complete and when its last member has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredGroup {
    /// What kind of group this is.
    pub(crate) protocol_type: ByteString,
    /// Number of the generation.
    pub(crate) generation: i32,
    /// The protocol chosen.
    pub(crate) protocol: Option<ByteString>,
    /// The member that assigned.
    pub(crate) leader: Option<ByteString>,
    /// Wall clock when it came to be, in milliseconds since 1970; −1 when unknown.
    pub(crate) since_ms: i64,
    /// The members.
    pub(crate) members: Vec<StoredMember>,
}

/// A member of a [`StoredGroup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredMember {
    pub(crate) member_id: ByteString,
    pub(crate) instance_id: Option<ByteString>,
    pub(crate) client_id: ByteString,
    pub(crate) client_host: ByteString,
    /// In milliseconds.
    pub(crate) rebalance_timeout_ms: i32,
    /// In milliseconds.
    pub(crate) session_timeout_ms: i32,
    /// For the protocol chosen.
    pub(crate) metadata: Bytes,
    pub(crate) assignment: Bytes,
}

/// What a record is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A group's offset of a partition.
    Offset {
        group: ByteString,
        topic: ByteString,
        partition: i32,
    },
    /// A group.
    Group { group: ByteString },
}

/// One record: what it is about, and what it says; nothing takes it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Offset {
        group: ByteString,
        topic: ByteString,
        partition: i32,
        committed: Option<Committed>,
    },
    Group {
        group: ByteString,
        stored: Option<StoredGroup>,
    },
}

impl Key {
    /// The key's bytes.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Offset {
                group,
                topic,
                partition,
            } => {
                out.put_i16(OFFSET_KEY);
                put_string(&mut out, Some(group));
                put_string(&mut out, Some(topic));
                out.put_i32(*partition);
            }
            Self::Group { group } => {
                out.put_i16(GROUP_KEY);
                put_string(&mut out, Some(group));
            }
        }
        out.freeze()
    }
}

impl Committed {
    /// The value's bytes.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_i16(OFFSET_VALUE);
        out.put_i64(self.offset);
        out.put_i32(self.leader_epoch);
        put_string(&mut out, Some(&self.metadata));
        out.put_i64(self.committed_ms);
        out.freeze()
    }
}

impl StoredGroup {
    /// The value's bytes.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_i16(GROUP_VALUE);
        put_string(&mut out, Some(&self.protocol_type));
        out.put_i32(self.generation);
        put_string(&mut out, self.protocol.as_ref());
        put_string(&mut out, self.leader.as_ref());
        out.put_i64(self.since_ms);
        // As many as the coordinator allows.
        out.put_i32(i32::try_from(self.members.len()).unwrap_or(i32::MAX));
        for member in &self.members {
            put_string(&mut out, Some(&member.member_id));
            put_string(&mut out, member.instance_id.as_ref());
            put_string(&mut out, Some(&member.client_id));
            put_string(&mut out, Some(&member.client_host));
            out.put_i32(member.rebalance_timeout_ms);
            out.put_i32(member.session_timeout_ms);
            put_bytes(&mut out, &member.metadata);
            put_bytes(&mut out, &member.assignment);
        }
        out.freeze()
    }
}

/// Reads a record.
///
/// # Errors
/// Not in a format above.
pub(crate) fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Entry, Unreadable> {
    let mut key = Bytes::copy_from_slice(key.ok_or(Unreadable::NoKey)?);
    let mut value = value.map(Bytes::copy_from_slice);
    match get_i16(&mut key)? {
        0 | OFFSET_KEY => Ok(Entry::Offset {
            group: string(&mut key, "group")?,
            topic: string(&mut key, "topic")?,
            partition: get_i32(&mut key)?,
            committed: value.as_mut().map(committed).transpose()?,
        }),
        GROUP_KEY => Ok(Entry::Group {
            group: string(&mut key, "group")?,
            stored: value.as_mut().map(stored_group).transpose()?,
        }),
        version => Err(Unreadable::Version {
            what: "key",
            version,
        }),
    }
}

fn committed(value: &mut Bytes) -> Result<Committed, Unreadable> {
    let version = version(value, "offset", OFFSET_VALUE)?;
    Ok(Committed {
        offset: get_i64(value)?,
        leader_epoch: if version >= 3 { get_i32(value)? } else { -1 },
        metadata: string(value, "metadata")?,
        committed_ms: get_i64(value)?,
    })
}

fn stored_group(value: &mut Bytes) -> Result<StoredGroup, Unreadable> {
    let version = version(value, "group", GROUP_VALUE)?;
    let mut group = StoredGroup {
        protocol_type: string(value, "protocol type")?,
        generation: get_i32(value)?,
        protocol: nullable(value)?,
        leader: nullable(value)?,
        since_ms: if version >= 2 { get_i64(value)? } else { -1 },
        members: Vec::new(),
    };
    for _ in 0..get_length(value, LengthForm::Int32)?.unwrap_or(0) {
        group.members.push(stored_member(value, version)?);
    }
    Ok(group)
}

fn stored_member(value: &mut Bytes, version: i16) -> Result<StoredMember, Unreadable> {
    let member_id = string(value, "member id")?;
    let instance_id = if version >= 3 { nullable(value)? } else { None };
    let client_id = string(value, "client id")?;
    let client_host = string(value, "client host")?;
    let first = get_i32(value)?;
    // Version 0 has no rebalance timeout; the session timeout served as both.
    let second = if version >= 1 { get_i32(value)? } else { first };
    Ok(StoredMember {
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms: first,
        session_timeout_ms: second,
        metadata: get_bytes(value, LengthForm::Int32)?.unwrap_or_default(),
        assignment: get_bytes(value, LengthForm::Int32)?.unwrap_or_default(),
    })
}

fn version(value: &mut Bytes, what: &'static str, highest: i16) -> Result<i16, Unreadable> {
    match get_i16(value)? {
        version if (0..=highest).contains(&version) => Ok(version),
        version => Err(Unreadable::Version { what, version }),
    }
}

fn nullable(buf: &mut Bytes) -> Result<Option<ByteString>, Unreadable> {
    Ok(get_string(buf, LengthForm::Int16)?)
}

fn string(buf: &mut Bytes, what: &'static str) -> Result<ByteString, Unreadable> {
    nullable(buf)?.ok_or(Unreadable::Null(what))
}

/// Strings here came over the wire or from this broker; the longer ones are cut to what a length of two bytes holds.
fn put_string(out: &mut BytesMut, text: Option<&ByteString>) {
    let Some(text) = text else {
        out.put_i16(-1);
        return;
    };
    let mut end = text.len().min(i16::MAX as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Just cut to fit.
    out.put_i16(i16::try_from(end).unwrap_or(0));
    out.put_slice(text.as_bytes().get(..end).unwrap_or_default());
}

fn put_bytes(out: &mut BytesMut, bytes: &Bytes) {
    // Parts of a request, whose own length has 31 bits.
    out.put_i32(i32::try_from(bytes.len()).unwrap_or(0));
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset_key() -> Key {
        Key::Offset {
            group: "g".into(),
            topic: "orders".into(),
            partition: 3,
        }
    }

    fn group() -> StoredGroup {
        StoredGroup {
            protocol_type: "consumer".into(),
            generation: 7,
            protocol: Some("range".into()),
            leader: Some("m".into()),
            since_ms: 1_700_000_000_000,
            members: vec![StoredMember {
                member_id: "m".into(),
                instance_id: Some("static".into()),
                client_id: "c".into(),
                client_host: "/127.0.0.1".into(),
                rebalance_timeout_ms: 60_000,
                session_timeout_ms: 10_000,
                metadata: Bytes::from_static(b"subscription"),
                assignment: Bytes::from_static(b"assignment"),
            }],
        }
    }

    #[test]
    fn offsets_are_written_as_kafka_does() {
        let committed = Committed {
            offset: 258,
            leader_epoch: 5,
            metadata: "note".into(),
            committed_ms: 1,
        };
        assert_eq!(
            offset_key().encode(),
            &b"\0\x01\0\x01g\0\x06orders\0\0\0\x03"[..]
        );
        assert_eq!(
            committed.encode(),
            &b"\0\x03\0\0\0\0\0\0\x01\x02\0\0\0\x05\0\x04note\0\0\0\0\0\0\0\x01"[..]
        );
    }

    #[test]
    fn groups_come_back_as_they_were_written() {
        let key = Key::Group { group: "g".into() };
        assert_eq!(key.encode(), &b"\0\x02\0\x01g"[..]);
        let entry = decode(Some(&key.encode()), Some(&group().encode())).unwrap();
        let stored = Some(group());
        assert_eq!(
            entry,
            Entry::Group {
                group: "g".into(),
                stored
            }
        );
        let gone = decode(Some(&key.encode()), None).unwrap();
        let stored = None;
        assert_eq!(
            gone,
            Entry::Group {
                group: "g".into(),
                stored
            }
        );
    }

    #[test]
    fn older_versions_of_kafka_are_read() {
        let old = b"\0\x01\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03";
        let entry = decode(Some(&offset_key().encode()), Some(old)).unwrap();
        let Entry::Offset {
            committed: Some(committed),
            ..
        } = entry
        else {
            panic!("{entry:?}")
        };
        assert_eq!(
            (
                committed.offset,
                committed.leader_epoch,
                committed.committed_ms
            ),
            (9, -1, 2)
        );
        let member = b"\0\x01m\0\x01c\0\x01h\0\0\0\x05\0\0\0\0\0\0\0\0";
        let mut v0 = Vec::from(&b"\0\0\0\x01t\0\0\0\x04\xff\xff\xff\xff\0\0\0\x01"[..]);
        v0.extend_from_slice(member);
        let key = Key::Group { group: "g".into() }.encode();
        let Entry::Group {
            stored: Some(group),
            ..
        } = decode(Some(&key), Some(&v0)).unwrap()
        else {
            panic!()
        };
        assert_eq!(
            (group.generation, group.protocol, group.since_ms),
            (4, None, -1)
        );
        let member = group.members.first().unwrap();
        assert_eq!(
            (member.session_timeout_ms, member.rebalance_timeout_ms),
            (5, 5)
        );
    }

    #[test]
    fn every_prefix_and_a_later_version_are_refused() {
        let key = Key::Group { group: "g".into() }.encode();
        let value = group().encode();
        for end in 0..value.len() {
            assert!(decode(Some(&key), value.get(..end)).is_err(), "{end}");
        }
        for (key, value, part) in [
            (&b"\0\x09"[..], &b""[..], "key of version 9"),
            (&key[..], &b"\0\x04"[..], "group of version 4"),
            (&b"\0\x02\xff\xff"[..], &b"\0\x03"[..], "group is null"),
        ] {
            let error = decode(Some(key), Some(value)).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(matches!(decode(None, None), Err(Unreadable::NoKey)));
    }
}
