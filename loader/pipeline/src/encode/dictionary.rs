//! Which columns get a dictionary.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType};
use arrow_buffer::ToByteSlice;
use arrow_schema::{DataType, TimeUnit};

/// A dictionary pays while values repeat: at most this share of the sampled values is distinct.
const MAX_DISTINCT_PERCENT: usize = 50;

/// Whether a column is to have a dictionary, decided from a file's first rows alone (so that the same
/// rows always decide alike): true if at most half of its values are distinct, by an estimate.
/// Columns of lists and structs keep the dictionary.
pub(super) fn repeats(sample: &ArrayRef) -> bool {
    let values = sample.len() - sample.null_count();
    let distinct = distinct(sample);
    distinct.is_none_or(|distinct| distinct * 100 <= values * MAX_DISTINCT_PERCENT)
}

/// About the number of distinct values; None for types that are not counted.
fn distinct(array: &ArrayRef) -> Option<usize> {
    let mut seen = Distinct::new(array.len());
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "booleans have no dictionary, nested columns are not sampled"
    )]
    match array.data_type() {
        DataType::Utf8 => {
            array
                .as_string::<i32>()
                .iter()
                .flatten()
                .for_each(|text| seen.add(text.as_bytes()));
        }
        DataType::Binary => {
            array
                .as_binary::<i32>()
                .iter()
                .flatten()
                .for_each(|bytes| seen.add(bytes));
        }
        DataType::Int32 => seen.add_numbers::<Int32Type>(array),
        DataType::Int64 => seen.add_numbers::<Int64Type>(array),
        DataType::Float64 => seen.add_numbers::<Float64Type>(array),
        DataType::Date32 => seen.add_numbers::<Date32Type>(array),
        DataType::Decimal128(_, _) => seen.add_numbers::<Decimal128Type>(array),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            seen.add_numbers::<TimestampMillisecondType>(array);
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            seen.add_numbers::<TimestampMicrosecondType>(array);
        }
        _ => return None,
    }
    Some(seen.slots_taken())
}

/// Counts distinct values by the slots that their hashes take: a few percent too low, without
/// keeping the values. The hash is our own, so that no library decides what files look like.
struct Distinct {
    slots: Vec<bool>,
    shift: u32,
}

impl Distinct {
    /// Room for `values` values, with eight slots for each.
    fn new(values: usize) -> Self {
        let slots = values.saturating_mul(8).next_power_of_two().max(64);
        Self {
            slots: vec![false; slots],
            shift: 64 - slots.trailing_zeros(),
        }
    }

    fn add(&mut self, value: &[u8]) {
        let slot = usize::try_from(hash(value) >> self.shift).unwrap_or(0);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = true;
        }
    }

    fn add_numbers<T: ArrowPrimitiveType>(&mut self, array: &ArrayRef) {
        for value in array.as_primitive::<T>().iter().flatten() {
            self.add(value.to_byte_slice());
        }
    }

    fn slots_taken(&self) -> usize {
        self.slots.iter().filter(|taken| **taken).count()
    }
}

/// Eight bytes at a time: mix, multiply by the golden ratio's odd 64 bits, fold.
fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut state = u64::try_from(bytes.len()).unwrap_or(0).wrapping_mul(FACTOR);
    for part in bytes.chunks(8) {
        let word = part
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        state = (state ^ word).wrapping_mul(FACTOR);
        state ^= state >> 32;
    }
    state.wrapping_mul(FACTOR)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn estimates_are_close_for_numbers_and_strings() {
        for (distinct_values, rows) in
            [(1_i64, 8_192), (290, 8_192), (4_000, 8_192), (8_192, 8_192)]
        {
            let numbers = (0..rows).map(|n| n % distinct_values);
            let texts: StringArray = numbers
                .clone()
                .map(|n| Some(format!("https://example.com/{n}")))
                .collect();
            let arrays: [ArrayRef; 2] = [
                Arc::new(Int64Array::from_iter_values(numbers)),
                Arc::new(texts),
            ];
            for array in arrays {
                let found = i64::try_from(distinct(&array).unwrap()).unwrap();
                let least = distinct_values * 9 / 10;
                assert!(
                    (least..=distinct_values).contains(&found),
                    "{found} {distinct_values}"
                );
            }
        }
    }
}
