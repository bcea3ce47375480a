//! What happens at the source between two runs (A5: I6, I7), and what transactions leave behind.

use test_support::{TestRecords, TransactionEnd, kafka, random_topic};

use crate::harness::{Job, OurBroker, assert_success, events};

/// Values of the Java helper are `prefix` + number: a JSON object needs a prefix that opens one.
const TEXT_SCHEMA: &str = "[schema]\ncolumns = [{name='n', type='int64'}]\n[grouping]\nkeys = []\n\
     [records]\nbad_records = 'reject'\n[limits]\nmax_rejected_percent = 100.0\n";

#[test]
fn a_partition_added_between_runs_starts_at_its_earliest() {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    broker.produce("events", 0, &events(0, 10, 100));
    let job = Job::new(&broker.address, "events", "");
    job.edit("topics", "start = 'latest'\ntopics");
    job.load().expect(0);
    assert_eq!(job.rows(), 0, "latest: the ten before are not wanted");
    assert_success(&broker.topics(&["grow", "events", "--partitions", "3"]));
    broker.produce("events", 2, &events(10, 13, 100));
    assert_eq!(job.load().expect(0).rows(), 3);
    job.verify();
}

#[test]
fn a_topic_made_again_stops_the_job_until_the_gap_is_accepted() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &events(0, 10, 100));
    let job = Job::new(&broker.address, "events", "");
    job.load().expect(0);
    assert_success(&broker.topics(&["delete", "events"]));
    job.load().expect(66).says(&["events-0", "exists no more"]);
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &events(0, 4, 100));
    job.load().expect(66).says(&[
        "events-0",
        "loaded to offset 10",
        "made again",
        "--accept-gap",
    ]);
    assert_eq!(job.runs(), 1, "nothing was published");
    let accepted = job.load_with(&["--accept-gap"]).expect(0);
    assert_eq!(accepted.rows(), 4);
    assert_eq!(
        accepted.manifest()["accepted_gaps"][0]["reason"],
        "topic_recreated"
    );
    assert_eq!(job.load().expect(0).json["outcome"], "nothing");
    assert_eq!(job.verify()["accepted_gaps"], 1);
}

#[test]
fn a_log_start_beyond_our_end_names_the_lost_offsets() {
    let kafka = kafka();
    let topic = random_topic("retention");
    kafka.create_topic(&topic, 1, 1, &[]).unwrap();
    let records = TestRecords {
        count: 20,
        prefix: "{\"n\":1}",
        ..TestRecords::default()
    };
    kafka.produce(&topic, 0, &records).unwrap();
    let job = Job::new(kafka.bootstrap(), &topic, TEXT_SCHEMA);
    job.load().expect(0);
    kafka
        .produce(
            &topic,
            0,
            &TestRecords {
                count: 80,
                ..records
            },
        )
        .unwrap();
    kafka.delete_records(&topic, 0, 50).unwrap();
    job.load()
        .expect(66)
        .says(&["offsets 20 to 50 (exclusive) are lost"]);
    let accepted = job.load_with(&["--accept-gap"]).expect(0);
    let gap = &accepted.manifest()["accepted_gaps"][0];
    assert_eq!(
        (&gap["previous_end"], &gap["start"]),
        (&20.into(), &50.into())
    );
    job.verify();
}

#[test]
fn a_range_of_aborted_and_control_records_only_moves_the_end() {
    let kafka = kafka();
    let topic = random_topic("aborted");
    kafka.create_topic(&topic, 1, 1, &[]).unwrap();
    kafka
        .transaction(&topic, 0, 5, "{\"n\":1}", TransactionEnd::Commit)
        .unwrap();
    let job = Job::new(kafka.bootstrap(), &topic, TEXT_SCHEMA);
    let first = job.load().expect(0);
    let counts = &first.manifest()["ranges"][0]["counts"];
    assert_eq!(counts["control"], 1);
    assert_eq!(first.manifest()["ranges"][0]["end"], 6);
    kafka
        .transaction(&topic, 0, 7, "x", TransactionEnd::Abort)
        .unwrap();
    let second = job.load().expect(0);
    let range = &second.manifest()["ranges"][0];
    assert_eq!((&range["start"], &range["end"]), (&6.into(), &14.into()));
    assert_eq!(
        (&range["counts"]["aborted"], &range["counts"]["control"]),
        (&7.into(), &1.into())
    );
    assert_eq!(range["counts"]["rows"], 0);
    assert!(second.manifest()["files"].as_array().unwrap().is_empty());
    assert_eq!(job.load().expect(0).json["outcome"], "nothing");
    job.verify();
}

#[test]
fn compaction_holes_are_counted() {
    let kafka = kafka();
    let topic = random_topic("compacted");
    let configs = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "500"),
        ("min.cleanable.dirty.ratio", "0.001"),
        ("max.compaction.lag.ms", "500"),
    ];
    kafka.create_topic(&topic, 1, 1, &configs).unwrap();
    let produce = |from: u64, to: u64| {
        let lines: Vec<String> = (from..to)
            .map(|n| format!("k{}={{\"n\":{n}}}", n % 5))
            .collect();
        let extra = ["--key-separator", "="];
        assert_success(&crate::harness::produce(
            kafka.bootstrap(),
            &topic,
            &extra,
            &lines,
        ));
    };
    produce(0, 50);
    // The cleaner works on closed segments only: a later record closes the one before.
    let left = || {
        crate::harness::pause(std::time::Duration::from_millis(1_000));
        produce(50, 51);
        let cat = crate::harness::logferry()
            .args(["cat", "--brokers", kafka.bootstrap(), &topic, "--to", "50"])
            .output()
            .unwrap();
        assert_success(&cat);
        String::from_utf8(cat.stdout).unwrap().lines().count()
    };
    test_support::wait_until(std::time::Duration::from_secs(120), || left() < 20).unwrap();
    let job = Job::new(kafka.bootstrap(), &topic, TEXT_SCHEMA);
    let loaded = job.load().expect(0);
    let counts = &loaded.manifest()["ranges"][0]["counts"];
    assert!(counts["holes"].as_u64().unwrap() > 30, "{counts}");
    job.verify();
}

#[test]
fn a_move_to_another_cluster_with_another_id_is_a_new_sequence() {
    // Another topic id: not the same topic, so both are loaded and neither is doubled.
    let (one, two) = (OurBroker::start(), OurBroker::start());
    for broker in [&one, &two] {
        broker.create_topic("events", 1, &[]);
        broker.produce("events", 0, &events(0, 5, 100));
    }
    let job = Job::new(&one.address, "events", "");
    job.load().expect(0);
    job.edit(&one.address, &two.address);
    assert_eq!(job.load().expect(0).rows(), 5);
    assert_eq!(job.rows(), 10);
}
