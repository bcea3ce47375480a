//! The last offset of each key in the part of the log that is being compacted, in a table of fixed size.
//!
//! Keys are held as 16 bytes of hash, as in Kafka's `SkimpyOffsetMap`; two keys with the same hash would be taken for
//! one. Kafka uses MD5; here it is twice `SipHash` under keys that are drawn for each map, so that nobody can make keys
//! collide on purpose.

use std::hash::{BuildHasher, RandomState};

/// Two words of hash and the offset plus one; 0 marks an empty slot.
type Slot = [u64; 3];

/// Slots per entry: three of four are used at most.
const LOAD: (usize, usize) = (3, 4);

#[derive(Debug)]
pub(super) struct OffsetMap {
    /// Zeroed memory, which the system gives page by page as it is touched.
    slots: Vec<Slot>,
    hashers: [RandomState; 2],
    len: usize,
}

impl OffsetMap {
    /// Room for `entries` keys: 32 bytes each.
    pub(super) fn new(entries: usize) -> Self {
        let slots = entries.saturating_mul(LOAD.1) / LOAD.0 + 1;
        Self {
            slots: vec![[0; 3]; slots],
            hashers: [RandomState::new(), RandomState::new()],
            len: 0,
        }
    }

    /// Entries that fit into so many bytes.
    pub(super) fn entries_in(bytes: usize) -> usize {
        bytes / size_of::<Slot>() / LOAD.1 * LOAD.0
    }

    /// Keys in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keys that fit.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len() * LOAD.0 / LOAD.1
    }

    /// The slot of a key, or the empty one where it belongs.
    fn find(&self, key: &[u8]) -> (usize, Slot) {
        let [first, second] = &self.hashers;
        let (first, second) = (first.hash_one(key), second.hash_one(key));
        let slots = self.slots.len();
        let mut at = usize::try_from(first % slots as u64).unwrap_or(0);
        // There are always empty slots: nobody puts more than the capacity.
        for _ in 0..slots {
            let slot = self.slots.get(at).copied().unwrap_or_default();
            if slot == [0; 3] || (slot.first() == Some(&first) && slot.get(1) == Some(&second)) {
                return (at, [first, second, slot[2]]);
            }
            at = if at + 1 == slots { 0 } else { at + 1 };
        }
        (slots, [first, second, 0])
    }

    /// Sets the offset of a key; offsets come in their order. Beyond the capacity it is not kept.
    pub(super) fn put(&mut self, key: &[u8], offset: i64) {
        let (at, [first, second, before]) = self.find(key);
        if before == 0 && self.len >= self.capacity() {
            return;
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = [first, second, offset.cast_unsigned().wrapping_add(1)];
            self.len += usize::from(before == 0);
        }
    }

    /// The last offset of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<i64> {
        let (_, [_, _, stored]) = self.find(key);
        stored.checked_sub(1).map(u64::cast_signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_last_offset_up_to_the_capacity() {
        let mut map = OffsetMap::new(1000);
        assert!(map.capacity() >= 999, "{}", map.capacity());
        for round in 0..3i64 {
            for key in 0..900i64 {
                map.put(&key.to_be_bytes(), round * 900 + key);
            }
        }
        assert_eq!(map.len(), 900);
        for key in 0..900i64 {
            assert_eq!(map.get(&key.to_be_bytes()), Some(1800 + key));
        }
        assert_eq!(map.get(b"absent"), None);
        map.put(b"zero", 0);
        assert_eq!(map.get(b"zero"), Some(0));
        for key in 0..5000i64 {
            map.put(&(key + 10_000).to_be_bytes(), key);
        }
        assert_eq!(map.len(), map.capacity());
        assert_eq!(map.get(&5i64.to_be_bytes()), Some(1805));
    }

    #[test]
    fn few_keys_fit_as_well() {
        for entries in 1..50 {
            assert!(OffsetMap::new(entries).capacity() >= entries);
        }
    }

    #[test]
    fn memory_is_what_was_asked_for() {
        let entries = OffsetMap::entries_in(1 << 20);
        let map = OffsetMap::new(entries);
        assert!(map.slots.len() * size_of::<Slot>() <= (1 << 20) + 100);
        assert!(map.capacity() * 33 > 1 << 20);
    }
}
