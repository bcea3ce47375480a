//! Putting a compacted segment in the place of those it was made from, so that a crash at any point leaves either.
//!
//! ```text
//! written aside        decided             old ones gone         in place
//! 00.log.cleaned  ──►  00.log.swap   ──►                   ──►  00.log
//! 00.log  40.log       00.log  40.log      00.log.swap
//!         crash: .cleaned is removed       crash: the rest is done when the log is opened
//! ```
//! The directory is synced at each arrow, so that no step is seen without those before it. `.cleaned` and `.swap` are
//! Kafka's suffixes with Kafka's meaning: either broker finishes what the other began.

use std::path::Path;

use tracing::info;

use crate::disk::{Disk, FileInfo};
use crate::error::{Error, Result};
use crate::file_pool::remove_if_there;
use crate::partition_log::WALK_WINDOW;
use crate::scan::{HeaderWalk, Stop, end_offset_of};
use crate::segment::{
    LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, base_offset_of, file_name,
};

/// Of files that are being written.
pub(super) const CLEANED: &str = ".cleaned";
/// Of files that are to replace others.
pub(super) const SWAP: &str = ".swap";
/// The files of a segment; the log last, because its name decides.
pub(super) const SUFFIXES: [&str; 3] = [TIME_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX, LOG_SUFFIX];

/// Finishes or forgets what compactions had begun when the process ended.
///
/// # Errors
/// [`Error::Io`], [`Error::DiskFull`]; it can be called again.
pub(crate) fn finish_swaps(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let io = |operation, source| Error::io(operation, dir, source);
    let files = disk.list(dir).map_err(|source| io("list", source))?;
    let of_compaction =
        |file: &&FileInfo| file.name.ends_with(CLEANED) || file.name.ends_with(SWAP);
    if files.iter().find(of_compaction).is_none() {
        return Ok(());
    }
    for file in files.iter().filter(|file| file.name.ends_with(CLEANED)) {
        remove_if_there(disk, &dir.join(&file.name))?;
    }
    let decided = LOG_SUFFIX.to_owned() + SWAP;
    for base_offset in files
        .iter()
        .filter_map(|file| base_offset_of(&file.name, &decided))
    {
        let end_offset = end_of(disk, &dir.join(file_name(base_offset, &decided)))?;
        remove_replaced(disk, dir, &files, base_offset, end_offset)?;
        disk.sync_dir(dir).map_err(|source| io("sync", source))?;
        put_in_place(disk, dir, base_offset)?;
        info!(dir = %dir.display(), base_offset, end_offset, "finished the swap of a compacted segment");
    }
    // Indexes whose log was never decided on, or has its name already: they are rebuilt.
    let files = disk.list(dir).map_err(|source| io("list", source))?;
    for file in files.iter().filter(|file| file.name.ends_with(SWAP)) {
        remove_if_there(disk, &dir.join(&file.name))?;
    }
    disk.sync_dir(dir).map_err(|source| io("sync", source))
}

/// Where the log in a file ends. It has been synced before it got its name; should it be damaged since, what lies
/// before the damage counts, and what it was to replace behind stays.
fn end_of(disk: &dyn Disk, path: &Path) -> Result<i64> {
    let io = |source| Error::io("read", path, source);
    let file = disk
        .open(path, crate::disk::OpenMode::Existing)
        .map_err(io)?;
    let len = file.len().map_err(io)?;
    let mut walk = HeaderWalk::new(&*file, 0, len, WALK_WINDOW);
    let mut end_offset = i64::MIN;
    loop {
        match walk.next() {
            Ok(Some((_, header))) => end_offset = end_offset_of(&header),
            Ok(None) | Err(Stop::Bad(_)) => return Ok(end_offset),
            Err(Stop::Io(source)) => return Err(io(source)),
        }
    }
}

/// Removes the segments that begin behind `base_offset` and before `end_offset`.
fn remove_replaced(
    disk: &dyn Disk,
    dir: &Path,
    files: &[FileInfo],
    base_offset: i64,
    end_offset: i64,
) -> Result<()> {
    for suffix in SUFFIXES.iter().rev() {
        for file in files {
            let base = base_offset_of(&file.name, suffix);
            if base.is_some_and(|base| base > base_offset && base < end_offset) {
                remove_if_there(disk, &dir.join(&file.name))?;
            }
        }
    }
    Ok(())
}

/// Gives the files of a segment their final names, the log last, durably. Those that have them already stay.
pub(super) fn put_in_place(disk: &dyn Disk, dir: &Path, base_offset: i64) -> Result<()> {
    for suffix in SUFFIXES {
        let path = dir.join(file_name(base_offset, suffix));
        let from = dir.join(file_name(base_offset, suffix) + SWAP);
        let io = |source| Error::io("rename", &from, source);
        if disk.info(&from).map_err(io)?.is_some() {
            disk.rename(&from, &path).map_err(io)?;
        }
    }
    disk.sync_dir(dir)
        .map_err(|source| Error::io("sync", dir, source))
}
