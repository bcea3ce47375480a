//! Records set aside: as they came, with their coordinates and the reason, in a fixed schema.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::{
    BinaryBuilder, Int32Builder, Int64Builder, StringBuilder, TimestampMillisecondBuilder,
};
use arrow_array::{ArrayRef, ListArray, RecordBatch, StructArray};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use broker_client::protocol::record::Record;

use crate::schema::ELEMENT;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let timestamp = DataType::Timestamp(TimeUnit::Millisecond, Some(Arc::from("UTC")));
    Arc::new(Schema::new(vec![
        Field::new("topic", DataType::Utf8, false),
        Field::new("partition", DataType::Int32, false),
        Field::new("offset", DataType::Int64, false),
        Field::new("timestamp", timestamp, true),
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
        Field::new("headers", DataType::List(Arc::new(header_element())), false),
        Field::new("reason", DataType::Utf8, false),
    ]))
});

fn header_fields() -> Fields {
    Fields::from(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("value", DataType::Binary, true),
    ])
}

fn header_element() -> Field {
    Field::new(ELEMENT, DataType::Struct(header_fields()), false)
}

/// The schema of rejected records: `topic`, `partition`, `offset`, `timestamp` (null for -1),
/// `key`, `value`, `headers` (a list of name and value, order and duplicates kept; a name that is
/// not UTF-8, against the protocol, has replacement characters), `reason`.
#[must_use]
pub fn rejected_schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}

/// Collects rejected records into one batch.
#[derive(Debug)]
pub(crate) struct RejectedBuilder {
    topic: StringBuilder,
    partition: Int32Builder,
    offset: Int64Builder,
    timestamp: TimestampMillisecondBuilder,
    key: BinaryBuilder,
    value: BinaryBuilder,
    header_name: StringBuilder,
    header_value: BinaryBuilder,
    header_ends: Vec<i32>,
    headers: i32,
    reason: StringBuilder,
}

impl RejectedBuilder {
    pub(crate) fn new() -> Self {
        Self {
            topic: StringBuilder::new(),
            partition: Int32Builder::new(),
            offset: Int64Builder::new(),
            timestamp: TimestampMillisecondBuilder::new(),
            key: BinaryBuilder::new(),
            value: BinaryBuilder::new(),
            header_name: StringBuilder::new(),
            header_value: BinaryBuilder::new(),
            header_ends: vec![0],
            headers: 0,
            reason: StringBuilder::new(),
        }
    }

    pub(crate) fn push(&mut self, topic: &str, partition: i32, record: &Record<'_>, reason: &str) {
        self.topic.append_value(topic);
        self.partition.append_value(partition);
        self.offset.append_value(record.offset);
        self.timestamp
            .append_option((record.timestamp != -1).then_some(record.timestamp));
        self.key.append_option(record.key);
        self.value.append_option(record.value);
        for (name, value) in record.headers {
            self.header_name.append_value(String::from_utf8_lossy(name));
            self.header_value.append_option(value);
            self.headers += 1;
        }
        self.header_ends.push(self.headers);
        self.reason.append_value(reason);
    }

    pub(crate) fn finish(mut self) -> Result<RecordBatch, ArrowError> {
        let names: ArrayRef = Arc::new(self.header_name.finish());
        let values: ArrayRef = Arc::new(self.header_value.finish());
        let pairs = StructArray::try_new(header_fields(), vec![names, values], None)?;
        let ends = OffsetBuffer::new(ScalarBuffer::from(self.header_ends));
        let headers = ListArray::try_new(Arc::new(header_element()), ends, Arc::new(pairs), None)?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.topic.finish()),
            Arc::new(self.partition.finish()),
            Arc::new(self.offset.finish()),
            Arc::new(self.timestamp.finish().with_timezone("UTC")),
            Arc::new(self.key.finish()),
            Arc::new(self.value.finish()),
            Arc::new(headers),
            Arc::new(self.reason.finish()),
        ];
        RecordBatch::try_new(rejected_schema(), columns)
    }
}
