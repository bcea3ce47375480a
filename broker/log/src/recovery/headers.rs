//! Walking over headers of what is believed.

use std::path::PathBuf;
use std::sync::Arc;

use broker_protocol::record::BatchHeader;
use tracing::warn;

use crate::error::{Error, Result};
use crate::partition_log::WALK_WINDOW;
use crate::scan::{HeaderWalk, Stop, end_offset_of};
use crate::segment::Segment;

/// What a walk over a segment's headers came across.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// Bytes walked over.
    pub(crate) bytes: u64,
    /// Places where no batch begins: segment, byte, reason.
    pub(crate) damaged: Vec<(PathBuf, u64, String)>,
}

/// Passes the headers of a segment's batches that end behind `from` to `take`. Steps over a damaged place with the help
/// of the index, or else to the end of the segment.
pub(crate) fn walk_headers(
    segment: &Arc<Segment>,
    from: i64,
    mut take: impl FnMut(&BatchHeader),
) -> Result<Walked> {
    let mut walked = Walked::default();
    let state = segment.state();
    if state.end_offset <= from {
        return Ok(walked);
    }
    let begin = if from <= segment.base_offset() {
        0
    } else {
        match segment.find(from, state.size) {
            Ok(found) => found.map_or(state.size, |found| found.position),
            // The damage is before the place looked for.
            Err(Error::Corrupt { .. }) => 0,
            Err(error) => return Err(error),
        }
    };
    let file = segment.file()?;
    let mut walk = HeaderWalk::new(&*file, begin, state.size, WALK_WINDOW);
    loop {
        match walk.next() {
            Ok(Some((_, header))) => {
                if end_offset_of(&header) > from {
                    take(&header);
                }
            }
            Ok(None) => break,
            Err(Stop::Io(source)) => return Err(segment.io("read", source)),
            Err(Stop::Bad(bad)) => {
                let path = segment.path().to_owned();
                warn!(
                    path = %path.display(), position = bad.position, reason = %bad.reason,
                    "damaged place in a log"
                );
                let next = segment.resync(bad.position, state.size)?;
                walked.damaged.push((path, bad.position, bad.reason));
                let Some(entry) = next else { break };
                walk = HeaderWalk::new(&*file, entry.position, state.size, WALK_WINDOW);
            }
        }
    }
    walked.bytes = walk.position() - begin;
    Ok(walked)
}
