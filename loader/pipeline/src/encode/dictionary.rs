//! Which columns get a dictionary.

use std::collections::HashSet;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type};
use arrow_array::types::{TimestampMicrosecondType, TimestampMillisecondType};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, RecordBatch};
use arrow_schema::{DataType, TimeUnit};

/// A dictionary pays while values repeat: at most this share of the sampled values is distinct.
const MAX_DISTINCT_PERCENT: usize = 50;

/// Decides for each top-level column, from a file's first chunk of rows alone (so that the same
/// rows always decide alike): true if at most half of its values are distinct. Columns of lists
/// and structs keep the dictionary.
pub(super) fn columns_that_repeat(first_chunk: &RecordBatch) -> Vec<bool> {
    first_chunk.columns().iter().map(repeats).collect()
}

fn repeats(array: &ArrayRef) -> bool {
    let values = array.len() - array.null_count();
    let distinct = distinct(array);
    distinct.is_none_or(|distinct| distinct * 100 <= values * MAX_DISTINCT_PERCENT)
}

/// The number of distinct values; None for types that are not counted.
fn distinct(array: &ArrayRef) -> Option<usize> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "booleans have no dictionary, nested columns are not sampled"
    )]
    Some(match array.data_type() {
        DataType::Utf8 => array
            .as_string::<i32>()
            .iter()
            .flatten()
            .collect::<HashSet<_>>()
            .len(),
        DataType::Binary => array
            .as_binary::<i32>()
            .iter()
            .flatten()
            .collect::<HashSet<_>>()
            .len(),
        DataType::Int32 => distinct_numbers::<Int32Type, _>(array, |value| value),
        DataType::Int64 => distinct_numbers::<Int64Type, _>(array, |value| value),
        DataType::Date32 => distinct_numbers::<Date32Type, _>(array, |value| value),
        DataType::Decimal128(_, _) => distinct_numbers::<Decimal128Type, _>(array, |value| value),
        DataType::Float64 => distinct_numbers::<Float64Type, _>(array, f64::to_bits),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            distinct_numbers::<TimestampMillisecondType, _>(array, |value| value)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            distinct_numbers::<TimestampMicrosecondType, _>(array, |value| value)
        }
        _ => return None,
    })
}

fn distinct_numbers<T: ArrowPrimitiveType, K: std::hash::Hash + Eq>(
    array: &ArrayRef,
    key: impl Fn(T::Native) -> K,
) -> usize {
    array
        .as_primitive::<T>()
        .iter()
        .flatten()
        .map(key)
        .collect::<HashSet<_>>()
        .len()
}
