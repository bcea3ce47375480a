//! Hour completeness: which hours expect no more records.
//!
//! The assumption is the job's: a record reaches the log at most `grace` after its event time. So once
//! every partition is loaded past the first record stamped `hour end + grace`, the hour is complete.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::config::JobConfig;
use crate::manifest::{HourClaim, Manifest};
use crate::partitioner::Grouping;
use crate::plan::{PlanRequest, PlannedPartition};

const HOUR_MS: i64 = 3_600_000;
/// Most hours claimed by one run; the rest follows with the next.
const MAX_CLAIMS: i64 = 24 * 31;

/// The claims of a plan.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) hours: Vec<HourClaim>,
    /// Where the claims of the next run start.
    pub(crate) complete_before_ms: Option<i64>,
}

/// The record timestamp up to which every log must be loaded so that hours can be claimed at
/// `now_ms`: the last full hour's end plus the grace. `None` where the job claims nothing.
pub(crate) fn boundary_ms(job: &JobConfig, now_ms: i64) -> Option<i64> {
    let grace = job.completeness.as_ref()?.grace.as_ms();
    Some(hour_of(now_ms - grace) + grace)
}

/// Decides which hours become complete.
pub(crate) fn claim(
    request: &PlanRequest<'_>,
    partitions: &[PlannedPartition],
    nothing_left_out: bool,
) -> Claims {
    let before = request
        .newest
        .and_then(|manifest| manifest.complete_before_ms);
    let unchanged = Claims {
        hours: Vec::new(),
        complete_before_ms: before,
    };
    let Some(completeness) = &request.job.completeness else {
        return unchanged;
    };
    if !nothing_left_out || !all_loaded(request, partitions) {
        return unchanged;
    }
    let until = hour_of(request.now_ms - completeness.grace.as_ms());
    // Nothing is known of hours before the first claim: it covers the last full hour only.
    let from = before.unwrap_or(until - HOUR_MS);
    let until = until.min(from + MAX_CLAIMS * HOUR_MS);
    let mut hours = Vec::new();
    let mut hour = from;
    while hour < until {
        let Some(directory) = directory(&request.job.grouping, hour) else {
            return unchanged;
        };
        hours.push(HourClaim {
            directory,
            hour_start_ms: hour,
        });
        hour += HOUR_MS;
    }
    Claims {
        hours,
        complete_before_ms: Some(until.max(from)),
    }
}

/// Whether every partition of the dataset belongs to this plan and is loaded past the boundary.
fn all_loaded(request: &PlanRequest<'_>, partitions: &[PlannedPartition]) -> bool {
    let logs = request.source.topics.iter().flat_map(|topic| {
        topic
            .partitions
            .iter()
            .map(move |p| (&topic.topic, p.partition, p.offsets.as_ref().ok()))
    });
    let loaded = logs.into_iter().all(|(topic, partition, log)| {
        let until = log.and_then(|log| log.complete_until);
        let planned = partitions
            .iter()
            .find(|p| p.topic == *topic && p.partition == partition);
        matches!((until, planned), (Some(until), Some(planned)) if until <= planned.end)
    });
    let others = request.newest.is_some_and(|manifest| {
        manifest.partitions.iter().any(|state| {
            let planned = partitions.iter().any(|planned| {
                planned.topic == state.key.topic && planned.partition == state.key.partition
            });
            state.key.cluster_id != request.source.cluster_id || !planned
        })
    });
    loaded && !others
}

/// Whether the grouping has exactly one directory an hour, so that a claim names what it claims.
pub(crate) fn is_hourly(grouping: &Grouping) -> bool {
    let (first, last, next) = (
        directory(grouping, 0),
        directory(grouping, HOUR_MS - 1),
        directory(grouping, HOUR_MS),
    );
    first.is_some() && first == last && first != next
}

/// The newest hour that was claimed, by this run or one before.
pub(crate) fn newest(manifest: &Manifest) -> Option<HourClaim> {
    let hour_start_ms = manifest.complete_before_ms? - HOUR_MS;
    Some(HourClaim {
        directory: directory(&manifest.grouping, hour_start_ms)?,
        hour_start_ms,
    })
}

/// Directory of an hour by the job's grouping; `None` where it groups by more or less than time.
fn directory(grouping: &Grouping, hour_start_ms: i64) -> Option<String> {
    let zone = TimeZone::get(&grouping.zone).ok()?;
    let time = Timestamp::from_millisecond(hour_start_ms)
        .ok()?
        .to_zoned_datetime(zone);
    let mut levels = Vec::new();
    for key in &grouping.keys {
        let value = jiff::fmt::strtime::format(key.time.as_deref()?, &time).ok()?;
        levels.push(format!("{}={value}", key.name));
    }
    (!levels.is_empty()).then(|| levels.join("/"))
}

const fn hour_of(ms: i64) -> i64 {
    ms - ms.rem_euclid(HOUR_MS)
}
