//! Reading everything back and comparing it with what was acknowledged.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, FetchedBatch};

use super::load::{Acked, key_of};
use crate::harness::read_partition;

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) offset: i64,
    producer_id: i64,
    key: Option<String>,
    /// The producer's number, and the record's with it.
    writer: u64,
    number: u64,
}

impl Read {
    /// What tells one record from all others of its partition.
    pub(super) const fn identity(&self) -> (u64, u64) {
        (self.writer, self.number)
    }
}

/// What was found; a failure panics.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// Acknowledged, of the topics that keep everything, and found once.
    acked: u64,
    /// Not acknowledged and found, once.
    unacked: u64,
    /// Acknowledged of the compacted topic, and how many of these are still there.
    keyed: u64,
    kept: u64,
}

impl AddAssign for Proof {
    fn add_assign(&mut self, other: Self) {
        self.acked += other.acked;
        self.unacked += other.unacked;
        self.keyed += other.keyed;
        self.kept += other.kept;
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} acknowledged records found once, in order, where they were told to be; {} unacknowledged found once; \
             {} acknowledged with keys, of which compaction left {}",
            self.acked, self.unacked, self.keyed, self.kept
        )
    }
}

/// All records of a partition.
pub(super) async fn read(client: &Client, topic: &TopicName, partition: i32) -> Vec<Read> {
    let batches = read_partition(client, topic, partition).await;
    let read: Vec<Read> = batches.iter().flat_map(records_of).collect();
    assert!(read.is_sorted_by(|one, next| one.offset < next.offset));
    read
}

/// The records of a batch.
pub(super) fn records_of(fetched: &FetchedBatch) -> Vec<Read> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let records = fetched.batch.records(1 << 24).unwrap();
    let read = records.iter().map(|record| {
        let record = record.unwrap();
        let value = text(record.value.unwrap());
        let mut words = value.split(' ').map(|word| word.parse().ok());
        Read {
            offset: record.offset,
            producer_id: fetched.batch.header().producer_id,
            key: record.key.map(text),
            writer: words.next().flatten().unwrap(),
            number: words.next().flatten().unwrap(),
        }
    });
    read.collect()
}

impl Proof {
    /// A partition that keeps everything.
    pub(super) fn appended(
        &mut self,
        acked: &Acked,
        topic: &TopicName,
        partition: i32,
        read: &[Read],
    ) {
        let gapless = read
            .iter()
            .zip(0..)
            .find(|(record, at)| record.offset != *at);
        assert_eq!(gapless, None, "{topic}-{partition} has a gap");
        let mut found: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
        let mut producers = BTreeMap::new();
        for record in read {
            let of_writer = found.entry(record.writer).or_default();
            let (expected, got) = (of_writer.len() as u64, record.number);
            // Less is a record that is there twice, more a lost or a late one.
            assert_eq!(
                got,
                expected,
                "{topic}-{partition}: {record:?} follows {:?}",
                of_writer.last()
            );
            of_writer.push(record.offset);
            let writer = *producers.entry(record.producer_id).or_insert(record.writer);
            assert_eq!(
                writer, record.writer,
                "two producers were given one id: {record:?}"
            );
        }
        let here = acked
            .iter()
            .filter(|((of, at, _), _)| (of, *at) == (topic, partition));
        for ((_, _, writer), told) in here {
            let offsets = found.remove(writer).unwrap_or_default();
            let place = format!("{topic}-{partition}, producer {writer}");
            assert!(
                offsets.len() >= told.len(),
                "{place}: {} of {} are lost",
                told.len() - offsets.len(),
                told.len()
            );
            for (number, (told, offset)) in told.iter().zip(&offsets).enumerate() {
                // -1: the broker said that it had the record already.
                assert!(
                    told == offset || *told == -1,
                    "{place}: record {number} is at {offset}, not at {told}"
                );
            }
            self.acked += told.len() as u64;
            self.unacked += (offsets.len() - told.len()) as u64;
        }
        // Producers of which nothing was acknowledged.
        self.unacked += found
            .values()
            .map(|offsets| offsets.len() as u64)
            .sum::<u64>();
    }

    /// A partition that keeps the last value of each key.
    pub(super) fn compacted(
        &mut self,
        acked: &Acked,
        topic: &TopicName,
        partition: i32,
        read: &[Read],
    ) {
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        for record in read {
            let key = record.key.as_deref().unwrap();
            assert_eq!(key, key_of(record.number));
            let before = last.insert(key, record.number);
            assert!(
                before < Some(record.number),
                "{topic}-{partition}: {record:?} follows {before:?}"
            );
        }
        let here = acked
            .iter()
            .filter(|((of, at, _), _)| (of, *at) == (topic, partition));
        for ((_, _, _), told) in here {
            let mut expected = BTreeMap::new();
            for number in 0..told.len() as u64 {
                expected.insert(key_of(number), number);
            }
            // All was acknowledged at the end.
            let found = last
                .iter()
                .map(|(key, number)| ((*key).to_owned(), *number));
            assert_eq!(
                found.collect::<BTreeMap<_, _>>(),
                expected,
                "{topic}-{partition}"
            );
            self.keyed += told.len() as u64;
            self.kept += read.len() as u64;
        }
    }
}

/// Reads one producer's records, given by number in the order of their offsets, of which the first three were acknowledged.
fn proof_of(numbers: &[u64], producer_ids: [i64; 2]) -> Result<(), String> {
    let topic = TopicName::new("topic").unwrap();
    let acked = Acked::from([((topic.clone(), 0, 7), vec![0, -1, 2])]);
    let read = |(number, offset): (&u64, i64)| Read {
        offset,
        producer_id: producer_ids[usize::from(offset > 0)],
        key: None,
        writer: 7,
        number: *number,
    };
    let read: Vec<Read> = numbers.iter().zip(0..).map(read).collect();
    crate::harness::catching(|| Proof::default().appended(&acked, &topic, 0, &read))
}

#[test]
fn the_proof_notices_what_is_lost_doubled_or_out_of_order() {
    assert_eq!(proof_of(&[0, 1, 2, 3], [1, 1]), Ok(()));
    // A producer may ask for a new id.
    assert_eq!(proof_of(&[0, 1, 2], [1, 2]), Ok(()));
    for (numbers, says) in [
        (&[0, 1][..], "1 of 3 are lost"),
        (&[0, 2, 3], "follows"),
        (&[0, 1, 1, 2], "follows"),
        (&[1, 0, 2], "follows"),
        (&[], "3 of 3 are lost"),
    ] {
        let said = proof_of(numbers, [1, 1]).unwrap_err();
        assert!(said.contains(says), "{numbers:?}: {said}");
    }
}
