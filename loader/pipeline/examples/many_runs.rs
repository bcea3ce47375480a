//! Makes a dataset of many runs out of one that has a few, to measure what their number costs:
//! `cargo run -p loader-pipeline --example many_runs DATASET UP_TO`.
//!
//! Each new run moves one partition by one offset, in turn, and counts it as a control record, so that it has no
//! files; its manifest lists all partitions as every manifest does. Load a topic of 1,000 partitions of 20 records
//! first with `max_offsets_per_partition = 1`, then make the runs, then load again: the newest run is a real one.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use loader_pipeline::layout::{MANIFEST, RunNumber, SUCCESS};
use loader_pipeline::manifest::{LoadedRange, Manifest, OffsetCounts};
use loader_pipeline::sealed;
use uuid::Uuid;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dataset, up_to] = &arguments[..] else {
        return Err("usage: many_runs DATASET UP_TO".into());
    };
    let dataset = Path::new(dataset);
    let mut manifest = newest(dataset)?;
    let mut bytes = 0;
    while manifest.number < RunNumber(up_to.parse()?) {
        manifest = next(&manifest)?;
        let run = dataset.join(manifest.number.directory());
        let text = sealed::seal(&manifest)?;
        bytes += text.len();
        fs::create_dir(&run)?;
        fs::write(run.join(MANIFEST), text)?;
        fs::write(run.join(SUCCESS), "")?;
    }
    println!(
        "{} is the newest, {bytes} bytes were written",
        manifest.number.directory()
    );
    Ok(())
}

fn newest(dataset: &Path) -> Result<Manifest> {
    let runs = fs::read_dir(dataset)?.collect::<Result<Vec<_>, _>>()?;
    let number = |path: PathBuf| RunNumber::from_directory(path.file_name()?.to_str()?);
    let newest = runs
        .into_iter()
        .filter_map(|entry| number(entry.path()))
        .max();
    let newest = newest.ok_or("the dataset has no run yet")?;
    let bytes = fs::read(dataset.join(newest.directory()).join(MANIFEST))?;
    Ok(sealed::unseal(&bytes)?)
}

/// The run after `before`: one partition moves by one.
fn next(before: &Manifest) -> Result<Manifest> {
    let mut next = before.clone();
    next.previous = Some(before.run_ref());
    (next.number, next.uuid) = (before.number.next(), Uuid::new_v4());
    next.files.clear();
    next.complete_hours.clear();
    for state in &mut next.partitions {
        state.start = state.end;
    }
    let at = usize::try_from(next.number.0)? % next.partitions.len();
    let moved = next.partitions.get_mut(at).ok_or("no partitions")?;
    moved.end += 1;
    next.ranges = vec![LoadedRange {
        topic: moved.key.topic.clone(),
        partition: moved.key.partition,
        start: moved.start,
        end: moved.end,
        counts: OffsetCounts {
            control: 1,
            ..OffsetCounts::default()
        },
        leader_epoch: moved.leader_epoch,
    }];
    Ok(next)
}
