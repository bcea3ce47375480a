//! The layout as a test: which room may depend on which, how long a file may be, and that what the documents
//! name exists.
//!
//! ```text
//! protocol <- {client, log} <- server    client <- mirror    {client, store} <- pipeline
//! {server, mirror, pipeline, store, client} <- jobs <- tests
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// A crate, and the crates of ours its code may name.
const ALLOWED: &[(&str, &[&str])] = &[
    ("broker-protocol", &[]),
    ("broker-client", &["broker-protocol"]),
    ("broker-log", &["broker-protocol"]),
    (
        "broker-server",
        &["broker-protocol", "broker-client", "broker-log"],
    ),
    ("mirror", &["broker-client"]),
    ("loader-store", &[]),
    ("loader-pipeline", &["broker-client", "loader-store"]),
    (
        "logferry",
        &[
            "broker-client",
            "broker-server",
            "loader-store",
            "loader-pipeline",
            "mirror",
        ],
    ),
    (TEST_SUPPORT, &[]),
];

/// Starts real services; for tests only, and for those of every crate.
const TEST_SUPPORT: &str = "test-support";

/// A longer file is two things.
const MAX_LINES: usize = 800;

#[test]
fn crates_depend_only_downwards() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {printed}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let wrong = wrong_arrows(&metadata);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let crates = metadata["packages"].as_array().unwrap();
    assert!(crates.len() >= 8, "only {} crates seen", crates.len());
}

#[test]
fn a_wrong_arrow_is_named() {
    let dependency = |name: &str, kind: Option<&str>, path: Option<&str>| json!({ "name": name, "kind": kind, "path": path });
    let metadata = json!({ "packages": [
        { "name": "mirror", "dependencies": [
            dependency("broker-client", None, Some("broker/client")),
            dependency("broker-log", None, Some("broker/log")),
            dependency("tokio", None, None),
            dependency("test-support", Some("dev"), Some("tests/support")),
        ] },
        { "name": "broker-log", "dependencies": [
            dependency("test-support", None, Some("tests/support")),
            dependency("broker-server", Some("dev"), Some("broker/server")),
        ] },
        { "name": "utils", "dependencies": [] },
    ] });
    assert_eq!(
        wrong_arrows(&metadata),
        [
            "mirror must not depend on broker-log",
            "broker-log must not depend on test-support",
            "broker-log must not depend on broker-server",
            "crate utils has no row in ALLOWED",
        ]
    );
}

#[test]
fn files_are_short_enough_to_read() {
    let mut files = Vec::new();
    rust_files(Path::new(env!("CARGO_MANIFEST_DIR")), true, &mut files);
    assert!(files.len() > 20, "only {} files seen", files.len());
    let mut too_long = Vec::new();
    for file in files {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        if lines > MAX_LINES {
            too_long.push(format!("{}: {lines} lines", file.display()));
        }
    }
    assert!(
        too_long.is_empty(),
        "more than {MAX_LINES} lines:\n{}",
        too_long.join("\n")
    );
}

#[test]
fn every_test_that_the_cases_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/cases.md")).unwrap();
    let names: Vec<&str> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.contains("::") && *name != "module::test")
        .collect();
    assert!(names.len() > 50, "only {} names seen", names.len());
    let missing: Vec<&&str> = names.iter().filter(|name| !is_test(root, name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn a_test_that_does_not_exist_is_missed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(is_test(
        root,
        "tests/architecture.rs::a_test_that_does_not_exist_is_missed"
    ));
    for wrong in [
        "tests/architecture.rs::a_test_that_does_not_exist_is",
        "tests/architecture.rs::is_test",
        "kills::no_such_test",
        "no_such_module::test",
    ] {
        assert!(!is_test(root, wrong), "{wrong}");
    }
}

/// Whether `file::test`, or `module::test` of `tests/e2e`, is in the source with `#[test]` before it.
fn is_test(root: &Path, name: &str) -> bool {
    let Some((place, test)) = name.split_once("::") else {
        return false;
    };
    let files = if Path::new(place).extension().is_some() {
        vec![root.join(place)]
    } else {
        let module = root.join("tests/e2e").join(place);
        vec![module.with_extension("rs"), module.join("mod.rs")]
    };
    let definition = format!("fn {test}(");
    files.iter().any(|file| {
        let Ok(text) = fs::read_to_string(file) else {
            return false;
        };
        let Some((before, _)) = text.split_once(&definition) else {
            return false;
        };
        // Attributes and the word `async` stand between the end of the item before and the function.
        let attributes = before.rsplit(['}', ';']).next().unwrap_or_default();
        let mut lines = attributes.lines().map(str::trim);
        lines.any(|line| line == "#[test]" || line.starts_with("#[tokio::test"))
    })
}

/// One sentence for each dependency between our crates that points the wrong way.
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = ALLOWED.iter().find(|(row, _)| *row == name) else {
            wrong.push(format!("crate {name} has no row in ALLOWED"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let is_ours = !dependency["path"].is_null();
            let for_tests = dependency["kind"] == "dev";
            let target = dependency["name"].as_str().unwrap_or_default();
            // A crate may switch its own features on for its tests.
            let only_tested_with = target == TEST_SUPPORT || target == name;
            let fits = allowed.contains(&target) || (for_tests && only_tested_with);
            if is_ours && !fits {
                wrong.push(format!("{name} must not depend on {target}"));
            }
        }
    }
    wrong
}

/// All sources below a folder but tests, build output and hidden folders.
fn rust_files(folder: &Path, is_root: bool, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            let skipped = name.starts_with('.') || name == "tests" || (is_root && name == "target");
            if !skipped {
                rust_files(&path, false, files);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") && name != "tests.rs" {
            files.push(path);
        }
    }
}
