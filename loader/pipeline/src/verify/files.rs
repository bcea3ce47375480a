//! One file: its checksum, its footer, its coordinate columns.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch, StringArray};
use bytes::Bytes;
use loader_store::StorePath;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::Problem;
use crate::commit::Place;
use crate::error::Error;
use crate::manifest::{FileKind, PublishedFile};
use crate::schema::{OFFSET, PARTITION, TOPIC};
use crate::sealed;

/// What a file really holds.
#[derive(Debug)]
pub(super) struct FileFacts {
    pub(super) path: String,
    pub(super) kind: FileKind,
    /// Offsets by topic and partition, in file order.
    pub(super) offsets: Vec<(Arc<str>, i32, Vec<i64>)>,
    pub(super) problems: Vec<Problem>,
}

pub(super) async fn check_file(
    place: &Place,
    directory: &StorePath,
    file: PublishedFile,
    with_offsets: bool,
) -> Result<FileFacts, Error> {
    let path = directory.join(&file.path);
    let uri = place.store.uri(&path);
    let bytes = match place.store.read(&path).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == loader_store::ErrorKind::Unavailable => {
            return Err(error.into());
        }
        Err(error) => {
            let problem = format!("cannot be read: {}", crate::error::chain(&error));
            let problems = vec![Problem {
                path: uri.clone(),
                problem,
            }];
            return Ok(FileFacts {
                path: uri,
                kind: file.kind,
                offsets: Vec::new(),
                problems,
            });
        }
    };
    let checked =
        tokio::task::spawn_blocking(move || inspect(uri, &file, bytes, with_offsets)).await;
    checked.map_err(|panicked| Error::Internal {
        what: format!("cannot inspect {path}"),
        source: Some(Box::new(panicked)),
    })
}

fn inspect(path: String, file: &PublishedFile, bytes: Bytes, with_offsets: bool) -> FileFacts {
    let mut facts = FileFacts {
        path,
        kind: file.kind,
        offsets: Vec::new(),
        problems: Vec::new(),
    };
    let checksum = sealed::checksum(&bytes);
    if checksum != file.checksum {
        facts.add(format!(
            "has checksum {checksum}, the manifest says {}",
            file.checksum
        ));
        return facts;
    }
    let read = footer_and_offsets(bytes, file, with_offsets);
    match read {
        Ok((rows, offsets)) => {
            if rows != file.rows {
                facts.add(format!(
                    "its footer counts {rows} rows, the manifest says {}",
                    file.rows
                ));
            }
            facts.offsets = offsets;
        }
        Err(error) => facts.add(format!("cannot be read: {}", crate::error::chain(&*error))),
    }
    facts
}

impl FileFacts {
    fn add(&mut self, problem: String) {
        self.problems.push(Problem {
            path: self.path.clone(),
            problem,
        });
    }
}

type Offsets = Vec<(Arc<str>, i32, Vec<i64>)>;
type Unreadable = Box<dyn std::error::Error + Send + Sync>;

fn footer_and_offsets(
    bytes: Bytes,
    file: &PublishedFile,
    with_offsets: bool,
) -> Result<(u64, Offsets), Unreadable> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?;
    let rows = u64::try_from(reader.metadata().file_metadata().num_rows())?;
    if !with_offsets {
        return Ok((rows, Vec::new()));
    }
    let names = match file.kind {
        FileKind::Data => [TOPIC, PARTITION, OFFSET],
        FileKind::Rejected => ["topic", "partition", "offset"],
    };
    let columns = ProjectionMask::columns(reader.parquet_schema(), names);
    let mut offsets = Offsets::new();
    for batch in reader.with_projection(columns).build()? {
        collect(&batch?, names, &mut offsets)?;
    }
    Ok((rows, offsets))
}

/// Appends a batch's coordinates; runs of rows of one partition share an entry.
fn collect(batch: &RecordBatch, names: [&str; 3], into: &mut Offsets) -> Result<(), Unreadable> {
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
    for row in 0..batch.num_rows() {
        let (topic, partition) = (topics.value(row), partitions.value(row));
        match into.last_mut() {
            Some((t, p, list)) if &**t == topic && *p == partition => list.push(offsets.value(row)),
            _ => into.push((Arc::from(topic), partition, vec![offsets.value(row)])),
        }
    }
    Ok(())
}
