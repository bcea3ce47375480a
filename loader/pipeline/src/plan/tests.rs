use broker_client::EpochEnd;
use broker_client::protocol::ids::{TopicId, TopicName};
use uuid::Uuid;

use super::*;
use crate::commit::assemble::{Selection, compose};
use crate::config::StartAt;
use crate::error::LostOffsets;
use crate::layout::RunNumber;
use crate::manifest::GapReason;
use crate::snapshot::{LogOffsets, PartitionSnapshot, TopicSnapshot};

const NOW: i64 = 1_796_000_000_000;

fn topic(name: &str) -> TopicName {
    name.parse().unwrap()
}

fn job(extra: &str) -> JobConfig {
    let text = format!(
        "[source]\nbrokers = ['b:9092']\ntopics = ['t']\n{extra}\n[output]\ndataset = '/d'\n"
    );
    toml::from_str(&text).unwrap()
}

fn log(earliest: i64, end: i64) -> LogOffsets {
    LogOffsets {
        earliest,
        end,
        leader_epoch: 0,
        start_at: Some(earliest),
        previous_epoch: None,
        complete_until: None,
        bytes: None,
    }
}

fn source(logs: &[Result<LogOffsets, &str>]) -> SourceSnapshot {
    let partitions = logs
        .iter()
        .zip(0..)
        .map(|(log, partition)| PartitionSnapshot {
            partition,
            offsets: log.map_err(str::to_owned),
        });
    SourceSnapshot {
        cluster_id: "c".to_owned(),
        topics: vec![TopicSnapshot {
            topic: topic("t"),
            topic_id: Some(TopicId(Uuid::from_u128(1))),
            compacted: false,
            partitions: partitions.collect(),
        }],
        missing: Vec::new(),
    }
}

fn request<'a>(
    job: &'a JobConfig,
    schema: &'a TableSchema,
    newest: Option<&'a Manifest>,
    source: &'a SourceSnapshot,
) -> PlanRequest<'a> {
    PlanRequest {
        job,
        schema,
        newest,
        source,
        accept_gap: false,
        now_ms: NOW,
    }
}

fn schema() -> TableSchema {
    TableSchema {
        columns: Vec::new(),
        rest_column: None,
        coordinates: true,
    }
}

fn planned(job: &JobConfig, newest: Option<&Manifest>, source: &SourceSnapshot) -> Plan {
    plan(&request(job, &schema(), newest, source)).unwrap()
}

/// The manifest after all of `plan` was loaded, in a topic where every offset is a row.
fn loaded(plan: &Plan, base: Option<&Manifest>) -> Manifest {
    let mut selection = Selection::default();
    for task in &plan.tasks {
        let ranges = task
            .ranges
            .iter()
            .map(|range| crate::manifest::LoadedRange {
                topic: range.topic.clone(),
                partition: range.partition,
                start: range.start,
                end: range.end,
                counts: crate::manifest::OffsetCounts {
                    rows: (range.end - range.start).unsigned_abs(),
                    ..Default::default()
                },
                leader_epoch: 0,
            });
        let report = crate::report::AttemptReport {
            task: task.task,
            ranges: ranges.collect(),
            files: std::collections::BTreeMap::new(),
            rejected_samples: Vec::new(),
            unknown_fields: 0,
            event_time_from: Vec::new(),
        };
        selection.reports.insert(task.task, report);
    }
    compose(plan, &selection, Uuid::from_u128(9), base)
}

fn ranges(plan: &Plan) -> Vec<(i32, i64, i64)> {
    plan.partitions
        .iter()
        .map(|p| (p.partition, p.start, p.end))
        .collect()
}

fn lost(result: Result<Plan, Error>) -> Vec<LostOffsets> {
    match result {
        Err(Error::OffsetsGone { lost }) => lost,
        other => panic!("expected lost offsets, got {other:?}"),
    }
}

#[test]
fn the_next_run_starts_where_the_newest_ended() {
    let job = job("");
    let first = planned(&job, None, &source(&[Ok(log(0, 10)), Ok(log(3, 7))]));
    assert_eq!(ranges(&first), [(0, 0, 10), (1, 3, 7)]);
    let manifest = loaded(&first, None);
    let second = planned(
        &job,
        Some(&manifest),
        &source(&[Ok(log(0, 12)), Ok(log(3, 7))]),
    );
    assert_eq!(ranges(&second), [(0, 10, 12), (1, 7, 7)]);
    assert_eq!(second.base, Some(manifest.run_ref()));
    let manifest = loaded(&second, Some(&manifest));
    assert_eq!(manifest.number, RunNumber(2));
    let third = planned(
        &job,
        Some(&manifest),
        &source(&[Ok(log(0, 12)), Ok(log(3, 7))]),
    );
    assert!(!third.is_worth_publishing());
}

#[test]
fn a_partition_that_appears_later_starts_at_its_earliest_even_under_latest() {
    let job = job("start = 'latest'");
    let at_end = |earliest, end| LogOffsets {
        start_at: Some(end),
        ..log(earliest, end)
    };
    let first = planned(&job, None, &source(&[Ok(at_end(0, 10))]));
    assert_eq!(ranges(&first), [(0, 10, 10)]);
    assert!(first.is_worth_publishing(), "a first sight is recorded");
    let manifest = loaded(&first, None);
    let second = planned(
        &job,
        Some(&manifest),
        &source(&[Ok(at_end(0, 10)), Ok(at_end(2, 5))]),
    );
    assert_eq!(ranges(&second), [(0, 10, 10), (1, 2, 5)]);
}

#[test]
fn a_partition_without_a_leader_is_left_out_and_keeps_its_position() {
    let job = job("");
    let first = planned(&job, None, &source(&[Ok(log(0, 10)), Ok(log(0, 10))]));
    let manifest = loaded(&first, None);
    let second = planned(
        &job,
        Some(&manifest),
        &source(&[Err("no leader"), Ok(log(0, 20))]),
    );
    assert_eq!(ranges(&second), [(1, 10, 20)]);
    assert_eq!(second.left_out.len(), 1);
    let manifest = loaded(&second, Some(&manifest));
    let ends: Vec<_> = manifest
        .partitions
        .iter()
        .map(|s| (s.key.partition, s.start, s.end))
        .collect();
    assert_eq!(ends, [(0, 10, 10), (1, 10, 20)]);
}

#[test]
fn every_way_in_which_offsets_are_gone_stops_the_plan_and_can_be_accepted() {
    let job = job("");
    let manifest = loaded(&planned(&job, None, &source(&[Ok(log(0, 20))])), None);
    let recreated = {
        let mut source = source(&[Ok(log(0, 5))]);
        source.topics[0].topic_id = Some(TopicId(Uuid::from_u128(2)));
        source
    };
    let epoch = |leader_epoch, end_offset| {
        Some(EpochEnd {
            leader_epoch,
            end_offset,
        })
    };
    let cases = [
        (source(&[Ok(log(50, 100))]), GapReason::Retention, 50),
        (source(&[Ok(log(0, 15))]), GapReason::Truncation, 15),
        (
            source(&[Ok(LogOffsets {
                previous_epoch: epoch(0, 18),
                ..log(0, 30)
            })]),
            GapReason::Truncation,
            18,
        ),
        (
            source(&[Ok(LogOffsets {
                previous_epoch: epoch(-1, -1),
                ..log(4, 30)
            })]),
            GapReason::Truncation,
            4,
        ),
        (recreated, GapReason::TopicRecreated, 0),
    ];
    for (source, expected, resume) in cases {
        let schema = schema();
        let mut request = request(&job, &schema, Some(&manifest), &source);
        match &lost(plan(&request))[..] {
            [
                LostOffsets::Broken {
                    reason,
                    previous_end,
                    start,
                    ..
                },
            ] => {
                assert_eq!((*reason, *previous_end, *start), (expected, 20, resume));
            }
            other => panic!("{other:?}"),
        }
        request.accept_gap = true;
        let plan = plan(&request).unwrap();
        assert_eq!(plan.partitions[0].start, resume, "{expected:?}");
        let gap = &plan.accepted_gaps[0];
        assert_eq!(
            (gap.reason, gap.previous_end, gap.start),
            (expected, 20, resume)
        );
    }
}

#[test]
fn an_epoch_that_reaches_our_end_is_no_truncation() {
    let job = job("");
    let manifest = loaded(&planned(&job, None, &source(&[Ok(log(0, 20))])), None);
    let epoch = Some(EpochEnd {
        leader_epoch: 0,
        end_offset: 20,
    });
    let source = source(&[Ok(LogOffsets {
        previous_epoch: epoch,
        ..log(0, 30)
    })]);
    assert_eq!(
        ranges(&planned(&job, Some(&manifest), &source)),
        [(0, 20, 30)]
    );
}

#[test]
fn a_loaded_topic_that_is_gone_is_lost_and_a_new_one_that_never_was_is_a_mistake() {
    let job = job("");
    let manifest = loaded(&planned(&job, None, &source(&[Ok(log(0, 20))])), None);
    let gone = SourceSnapshot {
        cluster_id: "c".to_owned(),
        topics: Vec::new(),
        missing: vec![topic("t")],
    };
    let schema = schema();
    let found = lost(plan(&request(&job, &schema, Some(&manifest), &gone)));
    assert!(matches!(
        found[..],
        [LostOffsets::TopicGone {
            previous_end: 20,
            ..
        }]
    ));
    let error = plan(&request(&job, &schema, None, &gone)).unwrap_err();
    assert!(matches!(error, Error::UnknownTopics { .. }), "{error}");
}

#[test]
fn a_topic_that_moved_to_another_cluster_needs_a_word() {
    let mut job = job("");
    let manifest = loaded(&planned(&job, None, &source(&[Ok(log(0, 20))])), None);
    let mut mirror = source(&[Ok(log(0, 30))]);
    mirror.cluster_id = "mirror".to_owned();
    let schema = schema();
    let error = plan(&request(&job, &schema, Some(&manifest), &mirror))
        .unwrap_err()
        .to_string();
    assert!(error.contains("continues_cluster = \"c\""), "{error}");
    job.source.continues_cluster = Some("c".to_owned());
    let moved = planned(&job, Some(&manifest), &mirror);
    assert_eq!(ranges(&moved), [(0, 20, 30)]);
    let after = loaded(&moved, Some(&manifest));
    assert_eq!(after.partitions.len(), 1);
    assert_eq!(
        (
            after.partitions[0].key.cluster_id.as_str(),
            after.partitions[0].end
        ),
        ("mirror", 30)
    );
    assert_eq!(ranges(&planned(&job, Some(&after), &mirror)), [(0, 30, 30)]);
}

#[test]
fn two_clusters_with_the_same_topic_name_are_two_sequences() {
    let job = job("");
    let manifest = loaded(&planned(&job, None, &source(&[Ok(log(0, 20))])), None);
    let mut other = source(&[Ok(log(0, 7))]);
    other.cluster_id = "d".to_owned();
    other.topics[0].topic_id = Some(TopicId(Uuid::from_u128(77)));
    let second = planned(&job, Some(&manifest), &other);
    assert_eq!(ranges(&second), [(0, 0, 7)]);
    let both = loaded(&second, Some(&manifest));
    assert_eq!(both.partitions.len(), 2);
    let third = planned(&job, Some(&both), &source(&[Ok(log(0, 21))]));
    assert_eq!(ranges(&third), [(0, 20, 21)]);
    // A plan made on the first manifest still continues the second: its own partitions did not move.
    assert_eq!(
        planned(&job, Some(&manifest), &source(&[Ok(log(0, 21))])).continues(Some(&both)),
        Ok(())
    );
}

#[test]
fn a_plan_does_not_continue_a_manifest_in_which_its_partitions_moved() {
    let job = job("");
    let manifest = loaded(&planned(&job, None, &source(&[Ok(log(0, 20))])), None);
    let mine = planned(&job, Some(&manifest), &source(&[Ok(log(0, 30))]));
    assert_eq!(mine.continues(Some(&manifest)), Ok(()));
    let theirs = loaded(
        &planned(&job, Some(&manifest), &source(&[Ok(log(0, 25))])),
        Some(&manifest),
    );
    let moved = mine.continues(Some(&theirs)).unwrap_err();
    assert!(
        matches!(
            moved,
            Moved::Partition {
                planned: Some(20),
                found: Some(25),
                ..
            }
        ),
        "{moved}"
    );
    assert!(mine.continues(None).is_err());
    let first = planned(&job, None, &source(&[Ok(log(0, 20))]));
    assert!(
        first.continues(Some(&manifest)).is_err(),
        "someone else saw the partition first"
    );
}

#[test]
fn large_ranges_are_cut_and_small_ones_share_a_task() {
    let mut config = job("");
    config.limits.task_bytes = bytesize::ByteSize::b(1_000);
    let sized = |end, bytes| {
        Ok(LogOffsets {
            bytes: Some(bytes),
            ..log(0, end)
        })
    };
    let plan = planned(
        &config,
        None,
        &source(&[
            sized(100, 2_500),
            sized(10, 300),
            sized(10, 300),
            Ok(log(0, 0)),
        ]),
    );
    let cut: Vec<Vec<(i32, i64, i64)>> = plan
        .tasks
        .iter()
        .map(|t| {
            t.ranges
                .iter()
                .map(|r| (r.partition, r.start, r.end))
                .collect()
        })
        .collect();
    assert_eq!(
        cut,
        [
            vec![(0, 0, 33)],
            vec![(0, 33, 66)],
            vec![(0, 66, 100)],
            vec![(1, 0, 10), (2, 0, 10)]
        ]
    );
}

#[test]
fn the_limit_of_offsets_cuts_the_end() {
    let mut config = job("");
    config.limits.max_offsets_per_partition = Some(4);
    assert_eq!(
        ranges(&planned(&config, None, &source(&[Ok(log(2, 100))]))),
        [(0, 2, 6)]
    );
}

#[test]
fn the_fingerprint_ignores_the_engine_and_nothing_else() {
    let one = job("");
    let mut engine = one.clone();
    engine.engine.threads = Some(3);
    assert_eq!(fingerprint(&one).unwrap(), fingerprint(&engine).unwrap());
    let mut other = one.clone();
    other.source.start = StartAt::Latest;
    assert_ne!(fingerprint(&one).unwrap(), fingerprint(&other).unwrap());
}

#[test]
fn hours_become_complete_once_every_log_is_loaded_past_the_grace() {
    let mut config = job("");
    config.grouping = toml::from_str(
        "keys = [{name='dt', time='%Y-%m-%d'}, {name='hour', time='%H'}]\nevent_time = ['record timestamp']",
    )
    .unwrap();
    config.completeness = Some(toml::from_str("grace = '15m'").unwrap());
    let until = |complete_until, end| {
        Ok(LogOffsets {
            complete_until: Some(complete_until),
            ..log(0, end)
        })
    };
    let plan = planned(&config, None, &source(&[until(5, 9), until(9, 9)]));
    assert_eq!(plan.complete_hours.len(), 1);
    let hour = &plan.complete_hours[0];
    assert_eq!(
        hour.hour_start_ms + 3_600_000,
        plan.complete_before_ms.unwrap()
    );
    assert!(plan.complete_before_ms.unwrap() + 15 * 60_000 <= NOW);
    // A run that claims no further hour still says which was the last.
    let mut next = loaded(&plan, None);
    next.complete_hours.clear();
    assert_eq!(claims::newest(&next).as_ref(), Some(hour));
    let mut half_loaded = loaded(
        &planned(&job(""), None, &source(&[Ok(log(0, 5)), Ok(log(0, 5))])),
        None,
    );
    let mut elsewhere = half_loaded.partitions[0].clone();
    elsewhere.key.topic = topic("other");
    half_loaded.partitions.push(elsewhere);
    let other_job = planned(
        &config,
        Some(&half_loaded),
        &source(&[until(5, 9), until(9, 9)]),
    );
    assert!(
        other_job.complete_hours.is_empty(),
        "a partition of the dataset is not this job's"
    );
    config.limits.max_offsets_per_partition = Some(4);
    let cut_short = planned(&config, None, &source(&[until(5, 9), until(9, 9)]));
    assert!(
        cut_short.complete_hours.is_empty(),
        "not loaded past the boundary"
    );
}

#[test]
fn only_a_grouping_with_one_directory_an_hour_can_claim_hours() {
    let grouping =
        |keys: &str| -> Grouping { toml::from_str(&format!("keys = [{keys}]")).unwrap() };
    let (day, hour) = ("{name='dt', time='%Y-%m-%d'}", "{name='hour', time='%H'}");
    assert!(claims::is_hourly(&grouping(&format!("{day}, {hour}"))));
    assert!(!claims::is_hourly(&grouping(day)));
    assert!(!claims::is_hourly(&grouping(&format!(
        "{day}, {hour}, {{name='m', time='%M'}}"
    ))));
    assert!(!claims::is_hourly(&grouping(&format!(
        "{day}, {{name='c', column='c'}}"
    ))));
}

#[test]
fn a_plan_that_only_claims_hours_does_not_continue_its_own_published_run() {
    let mut config = job("");
    config.completeness = Some(toml::from_str("grace = '15m'").unwrap());
    let logs = source(&[Ok(LogOffsets {
        complete_until: Some(5),
        ..log(0, 9)
    })]);
    let manifest = loaded(&planned(&job(""), None, &logs), None);
    let claims = planned(&config, Some(&manifest), &logs);
    assert!(claims.tasks.is_empty() && !claims.complete_hours.is_empty());
    assert_eq!(claims.continues(Some(&manifest)), Ok(()));
    let published = loaded(&claims, Some(&manifest));
    assert_eq!(claims.continues(Some(&published)), Err(Moved::Claims));
}

#[test]
fn a_dead_runs_plan_is_not_resumed_over_a_changed_log() {
    let job = job("");
    let plan = planned(&job, None, &source(&[Ok(log(0, 10))]));
    assert!(plan.still_fits(&planned(&job, None, &source(&[Ok(log(0, 12))]))));
    let truncated = planned(&job, None, &source(&[Ok(log(0, 8))]));
    assert!(!plan.still_fits(&truncated));
    let another_leader = LogOffsets {
        leader_epoch: 1,
        ..log(0, 12)
    };
    assert!(!plan.still_fits(&planned(&job, None, &source(&[Ok(another_leader)]))));
    let mut recreated = source(&[Ok(log(0, 12))]);
    recreated.topics[0].topic_id = Some(TopicId(Uuid::from_u128(2)));
    assert!(!plan.still_fits(&planned(&job, None, &recreated)));
}
