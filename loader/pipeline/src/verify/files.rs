//! One file: its checksum, its footer, its coordinate columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch, StringArray};
use arrow_schema::Schema;
use loader_store::StorePath;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tokio::runtime::Handle;

use super::Problem;
use super::blocks::Blocks;
use super::offsets::{FileOffsets, OffsetAudit};
use crate::commit::Place;
use crate::error::Error;
use crate::manifest::{FileKind, PublishedFile};
use crate::rejected::rejected_schema;
use crate::schema::{OFFSET, PARTITION, TOPIC, TableSchema};
use crate::sealed;

/// Reads a file whose length is known to be the manifest's. With an audit its offsets are given to it.
///
/// # Errors
/// A store that is not usable; what is wrong with the file is returned as problems.
pub(super) async fn check_file(
    place: &Place,
    path: StorePath,
    file: PublishedFile,
    columns: Arc<Columns>,
    audit: Option<Arc<OffsetAudit>>,
) -> Result<Vec<Problem>, Error> {
    let store = Arc::clone(&place.store);
    let blocks = Blocks::new(store, path.clone(), file.bytes, Handle::current());
    let mut inspection = Inspection {
        path: place.store.uri(&path),
        file,
        columns,
        audit,
        problems: Vec::new(),
    };
    let inspect = move || {
        let inspected = inspection.run(&blocks);
        match (inspected, blocks.failure()) {
            (Err(_), Some(error)) if error.kind() == loader_store::ErrorKind::Unavailable => {
                return Err(Error::from(error));
            }
            (Err(_), Some(error)) => inspection.unreadable(&error),
            (Err(error), None) => inspection.unreadable(&*error),
            (Ok(()), _) => {}
        }
        Ok(inspection.problems)
    };
    let inspected = tokio::task::spawn_blocking(inspect).await;
    inspected.map_err(|panicked| Error::Internal {
        what: format!("cannot inspect {path}"),
        source: Some(Box::new(panicked)),
    })?
}

/// Names of the columns that the files of a run have, by kind.
#[derive(Debug)]
pub(super) struct Columns {
    data: Vec<String>,
    rejected: Vec<String>,
}

impl Columns {
    pub(super) fn of(schema: &TableSchema) -> Self {
        Self {
            data: names(&schema.to_arrow()),
            rejected: names(&rejected_schema()),
        }
    }
}

fn names(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|f| f.name().clone()).collect()
}

type Unreadable = Box<dyn std::error::Error + Send + Sync>;

/// A file under inspection.
struct Inspection {
    path: String,
    file: PublishedFile,
    columns: Arc<Columns>,
    audit: Option<Arc<OffsetAudit>>,
    problems: Vec<Problem>,
}

impl Inspection {
    fn add(&mut self, problem: String) {
        self.problems.push(Problem {
            path: self.path.clone(),
            problem,
        });
    }

    fn unreadable(&mut self, error: &dyn std::error::Error) {
        self.add(format!("cannot be read: {}", crate::error::chain(error)));
    }

    fn run(&mut self, blocks: &Blocks) -> Result<(), Unreadable> {
        let checksum = sealed::spell_checksum(blocks.crc32c()?);
        if checksum != self.file.checksum {
            let says = &self.file.checksum;
            self.add(format!("has checksum {checksum}, the manifest says {says}"));
            return Ok(());
        }
        let reader = ParquetRecordBatchReaderBuilder::try_new(blocks.clone())?;
        let rows = u64::try_from(reader.metadata().file_metadata().num_rows())?;
        if rows != self.file.rows {
            let says = self.file.rows;
            self.add(format!(
                "its footer counts {rows} rows, the manifest says {says}"
            ));
        }
        let (expected, coordinates) = match self.file.kind {
            FileKind::Data => (&self.columns.data, [TOPIC, PARTITION, OFFSET]),
            FileKind::Rejected => (&self.columns.rejected, ["topic", "partition", "offset"]),
        };
        let found = names(reader.schema());
        if found != *expected {
            let (found, expected) = (found.join(", "), expected.join(", "));
            self.add(format!(
                "has the columns {found}; they are to be {expected}"
            ));
        }
        let Some(audit) = self.audit.clone() else {
            return Ok(());
        };
        let columns = ProjectionMask::columns(reader.parquet_schema(), coordinates);
        let mut offsets = FileOffsets::new();
        for batch in reader.with_projection(columns).build()? {
            collect(&batch?, coordinates, self.file.kind, &audit, &mut offsets)?;
        }
        self.offsets(&offsets);
        Ok(())
    }

    /// What the file holds against what the manifest says it does.
    fn offsets(&mut self, found: &FileOffsets) {
        for ((topic, partition), held) in found {
            for (count, what) in held.problems() {
                self.add(format!(
                    "{count} offsets of {topic}-{partition} {what} (I4)"
                ));
            }
        }
        if self.file.kind == FileKind::Rejected && self.file.ranges.is_empty() {
            // Tasks note no spans of what they set aside.
            return;
        }
        let spans = self.file.ranges.iter();
        let spans: BTreeMap<_, _> = spans
            .map(|s| ((s.topic.to_string(), s.partition), (s.start, s.end)))
            .collect();
        let found: BTreeMap<_, _> = found
            .iter()
            .map(|(key, held)| (key.clone(), (held.smallest, held.largest.saturating_add(1))))
            .collect();
        for (at, (start, end)) in spans
            .iter()
            .filter(|(at, span)| found.get(at) != Some(span))
        {
            let held = found.get(at).map_or_else(
                || "none".to_owned(),
                |(start, end)| format!("{start} to {end}"),
            );
            self.add(format!(
                "holds offsets {held} of {}-{}, the manifest says {start} to {end}",
                at.0, at.1
            ));
        }
        for (topic, partition) in found.keys().filter(|at| !spans.contains_key(at)) {
            self.add(format!(
                "holds offsets of {topic}-{partition}, the manifest says none"
            ));
        }
    }
}

/// Gives a batch's coordinates to the audit, rows of one partition at a time.
fn collect(
    batch: &RecordBatch,
    names: [&str; 3],
    kind: FileKind,
    audit: &OffsetAudit,
    into: &mut FileOffsets,
) -> Result<(), Unreadable> {
    let [topic, partition, offset] = names.map(|name| batch.column_by_name(name));
    let (Some(topic), Some(partition), Some(offset)) = (topic, partition, offset) else {
        return Err("a coordinate column is missing".into());
    };
    let topic = arrow_cast::cast(topic, &arrow_schema::DataType::Utf8)?;
    let topics: &StringArray = topic.as_string_opt().ok_or("the topic column is no text")?;
    let partitions = partition
        .as_primitive_opt::<Int32Type>()
        .ok_or("the partition column is no int32")?;
    let offsets = offset
        .as_primitive_opt::<Int64Type>()
        .ok_or("the offset column is no int64")?;
    if topics.null_count() + partitions.null_count() + offsets.null_count() > 0 {
        return Err("a coordinate is null".into());
    }
    let mut row = 0;
    while row < batch.num_rows() {
        let at = (topics.value(row), partitions.value(row));
        let same = |row: &usize| (topics.value(*row), partitions.value(*row)) == at;
        let end = (row..batch.num_rows())
            .take_while(same)
            .last()
            .unwrap_or(row)
            + 1;
        audit.add(kind, at, (row..end).map(|row| offsets.value(row)), into);
        row = end;
    }
    Ok(())
}
