//! Where each partition starts and ends in a plan, and what keeps it from going on.

use std::collections::BTreeMap;

use broker_client::protocol::ids::TopicName;

use super::{PlanRequest, PlannedPartition, PreviousPosition};
use crate::error::{Error, LostOffsets};
use crate::manifest::{AcceptedGap, GapReason, LeftOut, PartitionState};
use crate::snapshot::{LogOffsets, TopicSnapshot};

/// The decided positions.
#[derive(Debug, Default)]
pub(super) struct Positions {
    pub(super) partitions: Vec<PlannedPartition>,
    pub(super) accepted_gaps: Vec<AcceptedGap>,
    pub(super) left_out: Vec<LeftOut>,
}

pub(super) fn decide(request: &PlanRequest<'_>) -> Result<Positions, Error> {
    let known = Known::new(request)?;
    let mut positions = Positions::default();
    let mut lost = known.missing_topics(request)?;
    for topic in &request.source.topics {
        lost.extend(known.missing_partitions(topic));
        for partition in &topic.partitions {
            let previous = known.state(&topic.topic, partition.partition);
            match &partition.offsets {
                Err(reason) => positions.left_out.push(LeftOut {
                    topic: topic.topic.clone(),
                    partition: partition.partition,
                    reason: reason.clone(),
                }),
                Ok(log) => {
                    let at = At {
                        topic,
                        partition: partition.partition,
                        log,
                        request,
                    };
                    match at.decide(previous, known.topic_is_new(&topic.topic)) {
                        Decision::Go(planned) => positions.partitions.push(planned),
                        Decision::Jump(planned, gap) => {
                            positions.partitions.push(planned);
                            positions.accepted_gaps.push(gap);
                        }
                        Decision::Lost(offsets) => lost.push(offsets),
                    }
                }
            }
        }
    }
    if !lost.is_empty() {
        return Err(Error::OffsetsGone { lost });
    }
    positions
        .partitions
        .sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    Ok(positions)
}

/// What the dataset knows of the job's topics, from this cluster or the one it continues.
struct Known<'a> {
    states: BTreeMap<(&'a TopicName, i32), &'a PartitionState>,
}

impl<'a> Known<'a> {
    fn new(request: &PlanRequest<'a>) -> Result<Self, Error> {
        let ours = &request.source.cluster_id;
        let continued = request.job.source.continues_cluster.as_ref();
        let mut states = BTreeMap::new();
        let all = request
            .newest
            .map_or(&[][..], |manifest| &manifest.partitions);
        for state in all.iter().filter(|s| Some(&s.key.cluster_id) == continued) {
            states.insert((&state.key.topic, state.key.partition), state);
        }
        for state in all.iter().filter(|s| s.key.cluster_id == *ours) {
            states.insert((&state.key.topic, state.key.partition), state);
        }
        let known = Self { states };
        for state in all.iter().filter(|s| s.key.cluster_id != *ours) {
            known.refuse_unconfirmed_move(request, state)?;
        }
        Ok(known)
    }

    /// The same topic id under another cluster id is a topic that moved: loading it as a new one would
    /// load everything twice.
    fn refuse_unconfirmed_move(
        &self,
        request: &PlanRequest<'_>,
        state: &PartitionState,
    ) -> Result<(), Error> {
        let Some(topic_id) = state.topic_id else {
            return Ok(());
        };
        let moved = request
            .source
            .topics
            .iter()
            .any(|t| t.topic_id == Some(topic_id));
        if moved
            && !self
                .states
                .contains_key(&(&state.key.topic, state.key.partition))
        {
            return Err(Error::Config {
                problems: vec![format!(
                    "topic {} (id {topic_id}) was loaded into this dataset from cluster `{}`, and the \
                     brokers named now belong to cluster `{}`; if this cluster continues that one with \
                     the same offsets, say so with `source.continues_cluster = \"{}\"`",
                    state.key.topic,
                    state.key.cluster_id,
                    request.source.cluster_id,
                    state.key.cluster_id
                )],
            });
        }
        Ok(())
    }

    fn state(&self, topic: &TopicName, partition: i32) -> Option<&'a PartitionState> {
        self.states.get(&(topic, partition)).copied()
    }

    fn topic_is_new(&self, topic: &TopicName) -> bool {
        !self.states.keys().any(|(known, _)| *known == topic)
    }

    /// Topics that exist no more: lost if they were loaded, a mistake in the job if they never were.
    fn missing_topics(&self, request: &PlanRequest<'_>) -> Result<Vec<LostOffsets>, Error> {
        let (new, gone): (Vec<_>, Vec<_>) = request
            .source
            .missing
            .iter()
            .cloned()
            .partition(|topic| self.topic_is_new(topic));
        if !new.is_empty() {
            return Err(Error::UnknownTopics { topics: new });
        }
        Ok(gone
            .iter()
            .flat_map(|topic| self.states.values().filter(move |s| s.key.topic == *topic))
            .map(|state| LostOffsets::TopicGone {
                topic: state.key.topic.clone(),
                partition: state.key.partition,
                previous_end: state.end,
            })
            .collect())
    }

    fn missing_partitions(&self, topic: &TopicSnapshot) -> Vec<LostOffsets> {
        self.states
            .values()
            .filter(|state| state.key.topic == topic.topic)
            .filter(|state| {
                !topic
                    .partitions
                    .iter()
                    .any(|p| p.partition == state.key.partition)
            })
            .map(|state| LostOffsets::PartitionGone {
                topic: state.key.topic.clone(),
                partition: state.key.partition,
                previous_end: state.end,
            })
            .collect()
    }
}

enum Decision {
    Go(PlannedPartition),
    Jump(PlannedPartition, AcceptedGap),
    Lost(LostOffsets),
}

/// One partition under decision.
struct At<'a> {
    topic: &'a TopicSnapshot,
    partition: i32,
    log: &'a LogOffsets,
    request: &'a PlanRequest<'a>,
}

impl At<'_> {
    fn decide(&self, previous: Option<&PartitionState>, topic_is_new: bool) -> Decision {
        let Some(previous) = previous else {
            // I7: only a topic's first sight asks the job where to start.
            let asked = if topic_is_new {
                self.log.start_at
            } else {
                None
            };
            let start = asked
                .unwrap_or(self.log.earliest)
                .clamp(self.log.earliest, self.log.end);
            return Decision::Go(self.planned(None, start));
        };
        match self.break_after(previous) {
            None => Decision::Go(self.planned(Some(previous), previous.end)),
            Some((reason, start)) if self.request.accept_gap => {
                let gap = AcceptedGap {
                    topic: self.topic.topic.clone(),
                    partition: self.partition,
                    reason,
                    previous_end: previous.end,
                    start,
                };
                Decision::Jump(self.planned(Some(previous), start), gap)
            }
            Some((reason, start)) => Decision::Lost(LostOffsets::Broken {
                topic: self.topic.topic.clone(),
                partition: self.partition,
                reason,
                previous_end: previous.end,
                start,
                log_start: self.log.earliest,
                log_end: self.log.end,
            }),
        }
    }

    /// Whether the log no longer continues the dataset (I6), and where it could be taken up again.
    fn break_after(&self, previous: &PartitionState) -> Option<(GapReason, i64)> {
        let log = self.log;
        if let (Some(then), Some(now)) = (previous.topic_id, self.topic.topic_id)
            && then != now
        {
            return Some((GapReason::TopicRecreated, log.earliest));
        }
        if let Some(epoch) = log.previous_epoch {
            let known_until = if epoch.leader_epoch < 0 {
                -1
            } else {
                epoch.end_offset
            };
            if known_until < previous.end {
                let resume = known_until.clamp(log.earliest, log.end.max(log.earliest));
                return Some((GapReason::Truncation, resume));
            }
        }
        if log.end < previous.end {
            return Some((GapReason::Truncation, log.end.max(log.earliest)));
        }
        (log.earliest > previous.end).then_some((GapReason::Retention, log.earliest))
    }

    fn planned(&self, previous: Option<&PartitionState>, start: i64) -> PlannedPartition {
        let limit = self.request.job.limits.max_offsets_per_partition;
        let limit = limit
            .and_then(|most| i64::try_from(most).ok())
            .unwrap_or(i64::MAX);
        PlannedPartition {
            topic: self.topic.topic.clone(),
            topic_id: self.topic.topic_id,
            partition: self.partition,
            previous: previous.map(|state| PreviousPosition {
                cluster_id: state.key.cluster_id.clone(),
                topic_id: state.topic_id,
                end: state.end,
            }),
            start,
            end: self.log.end.max(start).min(start.saturating_add(limit)),
            leader_epoch: self.log.leader_epoch,
            holes_allowed: self.topic.compacted || self.request.job.source.allow_holes,
        }
    }
}
