use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{LogicalType, TimeUnit};
use parquet::file::metadata::ParquetMetaData;
use proptest::prelude::*;

use super::*;
use crate::schema::{Column, TableSchema};

/// Rows with a repeating, a distinct, a nullable and a nested column; `wide` bytes per value.
fn rows(count: usize, wide: usize) -> RecordBatch {
    let numbers = Int64Array::from_iter_values((0..i64::try_from(count).unwrap()).map(|n| n * 977));
    let repeating: StringArray = (0..count).map(|n| Some(["view", "click"][n % 2])).collect();
    let distinct: StringArray = (0..count)
        .map(|n| (n % 7 != 0).then(|| format!("{n}-{}", "x".repeat(wide * (n % 3)))))
        .collect();
    let field = Arc::new(Field::new("element", DataType::Utf8, true));
    let mut lists = ListBuilder::new(StringBuilder::new()).with_field(field);
    for n in 0..count {
        for element in 0..n % 4 {
            lists
                .values()
                .append_option((element != 1).then(|| format!("t{}", n % 5)));
        }
        lists.append(n % 11 != 0);
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("number", Arc::new(numbers)),
        ("repeating", Arc::new(repeating)),
        ("distinct", Arc::new(distinct)),
        ("tags", Arc::new(lists.finish())),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn options() -> ParquetOptions {
    ParquetOptions {
        row_group_rows: 1_024,
        ..ParquetOptions::default()
    }
}

/// The file of `batch` handed over in pieces of the given sizes (repeated).
fn file(batch: &RecordBatch, options: &ParquetOptions, sizes: &[usize]) -> Vec<u8> {
    let mut encoder = Box::new(ParquetEncoder::new(batch.schema(), options).unwrap());
    let mut cut = options.row_group_cut();
    let mut waiting = Vec::new();
    let mut bytes = Vec::new();
    let mut start = 0;
    for size in sizes.iter().cycle() {
        if start == batch.num_rows() {
            break;
        }
        let size = (*size).min(batch.num_rows() - start);
        let handed = batch.slice(start, size);
        start += size;
        for piece in cut.split(&handed, 0..size) {
            if piece.starts_group {
                bytes.extend_from_slice(&encoder.write_row_group(&waiting).unwrap());
                waiting.clear();
            }
            waiting.push(handed.slice(piece.rows.start, piece.rows.len()));
        }
    }
    if !waiting.is_empty() {
        bytes.extend_from_slice(&encoder.write_row_group(&waiting).unwrap());
    }
    let tail = encoder.close().unwrap();
    assert_eq!(tail.rows, u64::try_from(batch.num_rows()).unwrap());
    bytes.extend_from_slice(&tail.bytes);
    bytes
}

fn read(bytes: Vec<u8>) -> (Vec<RecordBatch>, ParquetMetaData) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).unwrap();
    let metadata = reader.metadata().as_ref().clone();
    let batches = reader
        .with_batch_size(1 << 20)
        .build()
        .unwrap()
        .map(Result::unwrap)
        .collect();
    (batches, metadata)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// I5: the bytes follow from the rows, however they are handed over.
    #[test]
    fn same_rows_give_the_same_bytes_whatever_the_batches(
        count in 0_usize..6_000,
        wide in prop_oneof![Just(1_usize), Just(700)],
        sizes in prop::collection::vec(1_usize..5_000, 1..6),
    ) {
        let batch = rows(count, wide);
        let options = ParquetOptions { row_group_bytes: ByteSize::kib(64), ..options() };
        let whole = file(&batch, &options, &[usize::MAX]);
        prop_assert_eq!(&file(&batch, &options, &sizes), &whole);
        let (batches, _) = read(whole);
        let found = arrow_select::concat::concat_batches(&batch.schema(), &batches).unwrap();
        prop_assert_eq!(found, batch);
    }
}

#[test]
fn one_row_at_a_time_gives_the_same_bytes() {
    let batch = rows(2_500, 3);
    assert_eq!(
        file(&batch, &options(), &[1]),
        file(&batch, &options(), &[2_500])
    );
}

#[test]
fn wide_rows_are_cut_by_bytes() {
    let values: StringArray = (0..40)
        .map(|n| Some(format!("{n}{}", "v".repeat(1 << 20))))
        .collect();
    let batch = RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef)]).unwrap();
    let options = ParquetOptions {
        row_group_bytes: ByteSize::mib(4),
        ..options()
    };
    let whole = file(&batch, &options, &[40]);
    assert_eq!(file(&batch, &options, &[1]), whole);
    assert_eq!(file(&batch, &options, &[3, 7]), whole);
    // Three values and their offsets fit into 4 MiB, four do not.
    let (_, metadata) = read(whole);
    assert_eq!(metadata.num_row_groups(), 14);
}

#[test]
fn row_groups_end_by_bytes_and_by_rows() {
    let batch = rows(8_000, 100);
    let by_rows = ParquetOptions {
        row_group_rows: 3_000,
        ..options()
    };
    let (_, metadata) = read(file(&batch, &by_rows, &[500]));
    let counts: Vec<_> = metadata
        .row_groups()
        .iter()
        .map(|group| group.num_rows())
        .collect();
    assert_eq!(counts, [3_000, 3_000, 2_000]);
    let by_bytes = ParquetOptions {
        row_group_bytes: ByteSize::kib(8),
        ..options()
    };
    let (_, metadata) = read(file(&batch, &by_bytes, &[500]));
    assert!(
        metadata.num_row_groups() > 2,
        "{}",
        metadata.num_row_groups()
    );
}

#[test]
fn an_empty_file_is_a_file() {
    let batch = rows(0, 1);
    let (batches, metadata) = read(file(&batch, &options(), &[1]));
    assert_eq!((batches.len(), metadata.file_metadata().num_rows()), (0, 0));
    assert_eq!(metadata.file_metadata().schema_descr().num_columns(), 4);
}

#[test]
fn dictionaries_follow_the_first_rows() {
    let batch = rows(4_000, 1);
    let dictionaries = |rule: DictionaryRule| {
        let (_, metadata) = read(file(
            &batch,
            &ParquetOptions {
                dictionary: rule,
                ..options()
            },
            &[900],
        ));
        let columns = metadata.row_group(0).columns().iter();
        columns
            .map(|column| column.dictionary_page_offset().is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        dictionaries(DictionaryRule::Auto),
        [false, true, false, true]
    );
    assert_eq!(dictionaries(DictionaryRule::Always), [true; 4]);
    assert_eq!(dictionaries(DictionaryRule::Never), [false; 4]);
}

#[test]
fn the_footer_names_no_build_and_types_are_parquets_own() {
    let types = [
        "timestamp_ms",
        "timestamp_us",
        "date",
        "decimal(9,2)",
        "decimal(38,10)",
        "string",
    ];
    let columns = types
        .iter()
        .map(|text| Column::new(*text, text.parse().unwrap()))
        .collect();
    let schema = TableSchema {
        columns,
        ..TableSchema::default()
    }
    .to_arrow();
    let batch = RecordBatch::new_empty(Arc::clone(&schema));
    let (_, metadata) = read(file(&batch, &options(), &[1]));
    let footer = metadata.file_metadata();
    assert_eq!(footer.created_by(), Some("logferry version 2"));
    assert!(footer.key_value_metadata().is_none());
    let logical: Vec<_> = footer
        .schema_descr()
        .columns()
        .iter()
        .map(|c| c.logical_type_ref().cloned())
        .collect();
    let timestamp = |unit| Some(LogicalType::timestamp(true, unit));
    assert_eq!(logical[0], timestamp(TimeUnit::MILLIS));
    assert_eq!(logical[1], timestamp(TimeUnit::MICROS));
    assert_eq!(logical[2], Some(LogicalType::Date));
    assert_eq!(logical[3], Some(LogicalType::decimal(2, 9)));
    assert_eq!(logical[4], Some(LogicalType::decimal(10, 38)));
    assert_eq!(logical[5], Some(LogicalType::String));
    // And they come back as what they were without an Arrow schema in the footer.
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file(&batch, &options(), &[1])));
    assert_eq!(reader.unwrap().schema().fields(), schema.fields());
}

#[test]
fn every_compression_reads_back() {
    let batch = rows(3_000, 10);
    for text in ["none", "snappy", "lz4", "gzip", "gzip:9", "zstd", "zstd:1"] {
        let compression: Compression = text.parse().unwrap();
        let bytes = file(
            &batch,
            &ParquetOptions {
                compression,
                ..options()
            },
            &[700],
        );
        let (batches, _) = read(bytes);
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, 3_000, "{text}");
        let numbers = batches[0]
            .column(0)
            .as_primitive::<arrow_array::types::Int64Type>();
        assert_eq!(numbers.value(2), 1_954);
    }
}

#[test]
fn options_are_read_and_refused_by_name() {
    let options: ParquetOptions = serde_json::from_str(
        r#"{"compression":"zstd:1","row_group_bytes":"64MiB","dictionary":"never"}"#,
    )
    .unwrap();
    assert_eq!(options.compression, Compression::Zstd(1));
    assert_eq!(options.row_group_bytes, ByteSize::mib(64));
    assert_eq!(options.row_group_rows, 1 << 20);
    let again = serde_json::to_string(&options).unwrap();
    assert_eq!(
        serde_json::from_str::<ParquetOptions>(&again).unwrap(),
        options
    );
    for text in [
        "zstd:23", "zstd:0", "gzip:10", "snappy:1", "brotli", "zstd:x", "",
    ] {
        assert!(text.parse::<Compression>().is_err(), "{text}");
    }
    let wrong = ParquetOptions {
        row_group_rows: 0,
        data_page_bytes: ByteSize::b(1),
        compression: Compression::Zstd(99),
        ..ParquetOptions::default()
    };
    let text = wrong.validate().unwrap_err().to_string();
    for expected in [
        "row_group_rows is 0",
        "data_page_bytes",
        "zstd has no level 99",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let schema = Arc::new(Schema::empty());
    assert!(ParquetEncoder::new(schema, &wrong).is_err());
}
