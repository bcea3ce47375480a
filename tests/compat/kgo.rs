//! franz-go's own suite, `pkg/kgo`, as its authors wrote it.

use std::collections::BTreeMap;
use std::time::Duration;

use test_support::{Process, Scratch};

use crate::programs;
use crate::target::Target;

/// Those of the suite's tests that talk to a broker.
const PATTERN: &str = "^(TestIssue|TestConsume|TestPause|TestAddRemove|TestGroup|TestDirect|TestTxnEtl|TestPing\
     |TestPooling|TestHookPollStart$)";

/// Its consumers wait for ever where there are no transactions, so it is not run against our broker.
const TRANSACTIONS: &str = "^TestTxnEtl$";

/// 80 s on Apache Kafka.
const PATIENCE: Duration = Duration::from_secs(280);

/// A topic of the suite has up to three partitions, and 5,000 records rather than half a million.
const SETTINGS: &[(&str, &str)] = &[
    ("KGO_TEST_RF", "1"),
    ("KGO_TEST_RECORDS", "5000"),
    ("KGO_TEST_MAX_TOPIC_PARTS", "3"),
    ("KGO_LOG_LEVEL", "none"),
];

/// Tests that our broker may fail, with the reason.
fn allowed() -> BTreeMap<&'static str, &'static str> {
    let rows = include_str!("kgo_allowed.txt").lines();
    rows.filter(|row| !row.starts_with('#'))
        .map(|row| row.split_once(": ").unwrap())
        .collect()
}

/// What became of each test; of its parts, too (`TestGroupETL/range`).
fn outcomes(printed: &str) -> BTreeMap<String, String> {
    let mut outcomes = BTreeMap::new();
    for line in printed.lines() {
        let Some((outcome, name)) = line
            .trim_start()
            .strip_prefix("--- ")
            .and_then(|l| l.split_once(": "))
        else {
            continue;
        };
        let name = name.split(' ').next().unwrap_or_default();
        outcomes.insert(name.to_owned(), outcome.to_owned());
    }
    outcomes
}

fn count(outcomes: &BTreeMap<String, String>) -> String {
    let of = |wanted: &str| {
        outcomes
            .values()
            .filter(|outcome| *outcome == wanted)
            .count()
    };
    let (passed, failed, skipped) = (of("PASS"), of("FAIL"), of("SKIP"));
    format!("{passed} passed, {failed} failed, {skipped} not for this broker")
}

fn run(target: &Target) -> (BTreeMap<String, String>, String) {
    let (program, sources) = programs::kgo();
    let mut command = std::process::Command::new(program);
    command
        .current_dir(sources)
        .args(["-test.v", "-test.timeout=270s", "-test.run", PATTERN])
        .env("KGO_SEEDS", target.address())
        .envs(SETTINGS.iter().copied());
    if target.is_ours() {
        command.args(["-test.skip", TRANSACTIONS]);
    }
    let folder = Scratch::new("logferry-kgo-").unwrap();
    let mut process = Process::start("kgo", &command, &folder.path().join("log")).unwrap();
    let ended = test_support::wait_until(PATIENCE, || !process.is_running());
    process.kill().unwrap();
    let printed = process.output().unwrap();
    assert!(
        ended.is_ok(),
        "no end after {PATIENCE:?}:\n{}",
        test_support::process::tail(&printed, 40)
    );
    let outcomes = outcomes(&printed);
    assert!(
        outcomes.len() > 25,
        "only {} tests ran:\n{printed}",
        outcomes.len()
    );
    (outcomes, printed)
}

/// One sentence for each test that is not as the list says.
fn problems(outcomes: &BTreeMap<String, String>, allowed: &BTreeMap<&str, &str>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, outcome) in outcomes {
        let whole = name.split('/').next().unwrap_or_default();
        if outcome == "FAIL" && !allowed.contains_key(whole) {
            problems.push(format!("{name} failed"));
        }
    }
    for (name, reason) in allowed {
        match outcomes.get(*name).map(String::as_str) {
            Some("FAIL") => {}
            outcome => problems.push(format!(
                "{name} is allowed to fail ({reason}), but: {outcome:?}; take it out of kgo_allowed.txt"
            )),
        }
    }
    problems
}

#[test]
fn the_suite_of_franz_go_passes_but_for_what_is_allowed() {
    let target = Target::ours();
    let (outcomes, printed) = run(&target);
    println!("franz-go pkg/kgo, our broker: {}", count(&outcomes));
    let problems = problems(&outcomes, &allowed());
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| !line.starts_with("==="))
        .collect();
    assert!(
        problems.is_empty(),
        "{}\n\nit printed:\n{}\nthe broker's log:\n{}",
        problems.join("\n"),
        test_support::process::tail(&lines.join("\n"), 120),
        target.log(),
    );
}

#[test]
#[ignore = "the counts beside ours, for the document: tests/long kgo"]
fn long_kgo_apache_kafka() {
    let (outcomes, printed) = run(&Target::ApacheKafka);
    println!("franz-go pkg/kgo, Apache Kafka: {}", count(&outcomes));
    assert_eq!(
        problems(&outcomes, &BTreeMap::new()),
        Vec::<String>::new(),
        "{printed}"
    );
}

#[test]
fn a_failure_that_is_not_allowed_and_one_that_is_no_more_are_named() {
    let printed = "--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/part (0.1s)\n--- PASS: TestB (1s)\n--- FAIL: TestC (1s)\n";
    let allowed = BTreeMap::from([
        ("TestC", "known"),
        ("TestB", "mended"),
        ("TestD", "renamed"),
    ]);
    let found = problems(&outcomes(printed), &allowed);
    assert_eq!(
        found,
        [
            "TestA failed",
            "TestA/part failed",
            "TestB is allowed to fail (mended), but: Some(\"PASS\"); take it out of kgo_allowed.txt",
            "TestD is allowed to fail (renamed), but: None; take it out of kgo_allowed.txt",
        ]
    );
}
