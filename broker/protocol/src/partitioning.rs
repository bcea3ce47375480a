//! The partition the Java producer chooses for a key, so that our producers and Java's agree.

/// Kafka's `Utils.murmur2`: 32-bit `MurmurHash2` with its fixed seed.
pub fn murmur2(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;

    // Java's lengths are int: a longer key cannot exist there.
    #[expect(clippy::cast_possible_truncation, reason = "as Java's int")]
    let mut hash = SEED ^ (key.len() as u32);
    let (words, tail) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (index, &byte) in tail.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The partition of a keyed record among `partitions`, as the Java producer's default partitioner has it:
/// `toPositive(murmur2(key)) % partitions`. With no partitions the answer is 0.
pub fn partition_for_key(key: &[u8], partitions: usize) -> usize {
    let positive = (murmur2(key) & 0x7fff_ffff) as usize;
    positive.checked_rem(partitions).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_agrees_with_kafkas_own_vectors() {
        // Apache Kafka, UtilsTest.testMurmur2.
        let vectors: [(&str, i32); 6] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
    }

    #[test]
    fn partition_clears_the_sign_bit_before_the_remainder() {
        // -973932308 & 0x7fffffff = 1173551340, and 1173551340 % 7 = 4.
        assert_eq!(partition_for_key(b"21", 7), 1_173_551_340 % 7);
        assert_eq!(partition_for_key(b"abc", 10), 7);
        assert_eq!(partition_for_key(b"abc", 0), 0);
    }
}
