//! The bytes of a producer snapshot: Apache Kafka's format, and behind it what Kafka does not keep.
//!
//! ```text
//! 0   version (i16): 1
//! 2   CRC-32C of everything behind it (u32)
//! 6   number of producers (i32), and for each of them:
//!       producer id (i64), epoch (i16), last sequence (i32), last offset (i64), offset delta of the last batch (i32),
//!       timestamp (i64), coordinator epoch (i32), first offset of the open transaction (i64): -1 where there is none
//! …   "LFWINDOW", and for each producer, in the same order:
//!       last seen (i64), number of batches (u8), and for each, oldest first:
//!       first sequence (i32), last sequence (i32), base offset (i64), end offset (i64), timestamp (i64)
//! ```
//! Big endian. Kafka's snapshot knows the last batch of a producer only, so that after a restart a repetition of an
//! earlier one of the five in flight would be refused as out of order. Kafka's reader checks the CRC over the whole file,
//! takes the producers it knows the number of, and looks no further: the window fits behind them. One file and one CRC, so
//! that the two parts cannot disagree. A snapshot that Kafka has written has no second part and gives windows of one batch.

use std::collections::VecDeque;

use super::{Producer, ProducerStates, SentBatch, WINDOW, add_sequence};

const VERSION: i16 = 1;
/// Where the bytes begin that the CRC covers.
const CRC_FROM: usize = 6;
/// Bytes of one producer in Kafka's part.
const ENTRY_LEN: usize = 46;
const MAGIC: &[u8] = b"LFWINDOW";

impl ProducerStates {
    /// The snapshot of these producers. About 220 bytes each.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut producers: Vec<(&i64, &Producer)> = self.producers.iter().collect();
        producers.sort_unstable_by_key(|(id, _)| **id);
        // More than two thousand million producers do not fit into memory.
        let count = i32::try_from(producers.len()).unwrap_or(i32::MAX);
        let mut body = count.to_be_bytes().to_vec();
        for (id, producer) in &producers {
            let last = producer.batches.back();
            body.extend_from_slice(&id.to_be_bytes());
            body.extend_from_slice(&producer.epoch.to_be_bytes());
            body.extend_from_slice(&last.map_or(-1, |sent| sent.last_sequence).to_be_bytes());
            body.extend_from_slice(&last.map_or(-1, |sent| sent.end_offset - 1).to_be_bytes());
            body.extend_from_slice(&last.map_or(0, SentBatch::offset_delta).to_be_bytes());
            let timestamp = last.map_or(producer.seen_ms, |sent| sent.timestamp_ms);
            body.extend_from_slice(&timestamp.to_be_bytes());
            body.extend_from_slice(&(-1_i32).to_be_bytes());
            body.extend_from_slice(&(-1_i64).to_be_bytes());
        }
        body.extend_from_slice(MAGIC);
        for (_, producer) in &producers {
            body.extend_from_slice(&producer.seen_ms.to_be_bytes());
            body.push(u8::try_from(producer.batches.len()).unwrap_or(u8::MAX));
            for sent in &producer.batches {
                body.extend_from_slice(&sent.first_sequence.to_be_bytes());
                body.extend_from_slice(&sent.last_sequence.to_be_bytes());
                body.extend_from_slice(&sent.base_offset.to_be_bytes());
                body.extend_from_slice(&sent.end_offset.to_be_bytes());
                body.extend_from_slice(&sent.timestamp_ms.to_be_bytes());
            }
        }
        let mut snapshot = VERSION.to_be_bytes().to_vec();
        snapshot.extend_from_slice(&crc32c::crc32c(&body).to_be_bytes());
        snapshot.append(&mut body);
        snapshot
    }

    /// Reads a snapshot, ours or Kafka's. What is wrong with it, otherwise.
    pub(crate) fn decode(snapshot: &[u8]) -> Result<Self, String> {
        let mut fields = Fields(snapshot);
        let version = fields.i16().ok_or("it is too short")?;
        if version != VERSION {
            return Err(format!("its version {version} is not {VERSION}"));
        }
        let crc = fields.u32().ok_or("it is too short")?;
        let computed = crc32c::crc32c(snapshot.get(CRC_FROM..).unwrap_or_default());
        if crc != computed {
            return Err(format!("its checksum {computed:#010x} is not {crc:#010x}"));
        }
        Self::decode_body(&mut fields).ok_or_else(|| "its content makes no sense".to_owned())
    }

    fn decode_body(fields: &mut Fields<'_>) -> Option<Self> {
        let count = usize::try_from(fields.i32()?).ok()?;
        if count > fields.0.len() / ENTRY_LEN {
            return None;
        }
        let mut producers = Vec::with_capacity(count);
        for _ in 0..count {
            producers.push(fields.kafkas_producer()?);
        }
        if fields.take(MAGIC.len()) == Some(MAGIC) {
            for (_, producer) in &mut producers {
                producer.seen_ms = fields.i64()?;
                producer.batches = fields.window()?;
            }
        }
        Some(Self {
            producers: producers.into_iter().collect(),
        })
    }
}

impl SentBatch {
    fn offset_delta(&self) -> i32 {
        // A batch's last offset delta is an i32.
        i32::try_from(self.end_offset - 1 - self.base_offset).unwrap_or(i32::MAX)
    }
}

/// Reads fields from the front; `None` where the bytes end.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn kafkas_producer(&mut self) -> Option<(i64, Producer)> {
        let id = self.i64().filter(|id| *id >= 0)?;
        let epoch = self.i16()?;
        let last_sequence = self.i32()?;
        let last_offset = self.i64()?;
        let offset_delta = self.i32()?;
        let timestamp_ms = self.i64()?;
        let _coordinator_epoch = self.i32()?;
        let _open_transaction = self.i64()?;
        let last = SentBatch {
            first_sequence: add_sequence(last_sequence, offset_delta.checked_neg()?),
            last_sequence,
            base_offset: last_offset.checked_sub(offset_delta.into())?,
            end_offset: last_offset.checked_add(1)?,
            timestamp_ms,
        };
        let has_batch = last_offset >= 0 && last_sequence >= 0;
        let producer = Producer {
            epoch,
            batches: has_batch.then_some(last).into_iter().collect(),
            seen_ms: timestamp_ms,
        };
        Some((id, producer))
    }

    fn window(&mut self) -> Option<VecDeque<SentBatch>> {
        let [count] = self.array()?;
        let count = usize::from(count);
        let mut batches = VecDeque::with_capacity(count.min(WINDOW));
        for _ in 0..count {
            let sent = SentBatch {
                first_sequence: self.i32()?,
                last_sequence: self.i32()?,
                base_offset: self.i64()?,
                end_offset: self.i64()?,
                timestamp_ms: self.i64()?,
            };
            if batches.len() == WINDOW {
                batches.pop_front();
            }
            batches.push_back(sent);
        }
        Some(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> ProducerStates {
        let sent = |n: i32| SentBatch {
            first_sequence: n * 10,
            last_sequence: n * 10 + 9,
            base_offset: i64::from(n) * 100,
            end_offset: i64::from(n) * 100 + 10,
            timestamp_ms: 1_000 + i64::from(n),
        };
        let full = Producer {
            epoch: 3,
            batches: (4..9).map(sent).collect(),
            seen_ms: 77,
        };
        let fenced = Producer {
            epoch: 9,
            batches: VecDeque::new(),
            seen_ms: 78,
        };
        ProducerStates {
            producers: [(1_000, full), (7, fenced)].into(),
        }
    }

    #[test]
    fn the_window_of_five_comes_back() {
        let states = states();
        assert_eq!(ProducerStates::decode(&states.encode()), Ok(states));
        let none = ProducerStates::default();
        assert_eq!(ProducerStates::decode(&none.encode()), Ok(none));
    }

    #[test]
    fn the_first_part_has_kafkas_bytes_and_alone_gives_the_last_batch() {
        let snapshot = states().encode();
        let kafkas = &snapshot[..CRC_FROM + 4 + 2 * ENTRY_LEN];
        assert_eq!(kafkas[..2], [0, 1]);
        assert_eq!(kafkas[6..10], [0, 0, 0, 2]);
        let expected = [
            &1_000_i64.to_be_bytes()[..],
            &3_i16.to_be_bytes(),
            &89_i32.to_be_bytes(),
            &809_i64.to_be_bytes(),
            &9_i32.to_be_bytes(),
            &1_008_i64.to_be_bytes(),
            &(-1_i32).to_be_bytes(),
            &(-1_i64).to_be_bytes(),
        ]
        .concat();
        assert_eq!(kafkas[10 + ENTRY_LEN..], expected);
        let mut alone = kafkas.to_vec();
        let crc = crc32c::crc32c(&alone[CRC_FROM..]);
        alone[2..6].copy_from_slice(&crc.to_be_bytes());
        let read = ProducerStates::decode(&alone).unwrap();
        let last = states().producers[&1_000].batches[4];
        assert_eq!(read.producers[&1_000].batches, [last]);
        assert_eq!(
            (read.producers[&7].epoch, read.producers[&7].batches.len()),
            (9, 0)
        );
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let snapshot = states().encode();
        for at in 0..snapshot.len() {
            for bit in 0..8 {
                let mut flipped = snapshot.clone();
                flipped[at] ^= 1 << bit;
                assert!(ProducerStates::decode(&flipped).is_err(), "{at} {bit}");
            }
            assert!(ProducerStates::decode(&snapshot[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn a_lying_count_allocates_nothing() {
        let mut snapshot = states().encode();
        snapshot[6..10].copy_from_slice(&i32::MAX.to_be_bytes());
        let crc = crc32c::crc32c(&snapshot[CRC_FROM..]);
        snapshot[2..6].copy_from_slice(&crc.to_be_bytes());
        let error = ProducerStates::decode(&snapshot).unwrap_err();
        assert_eq!(error, "its content makes no sense");
    }
}
