//! The dependency direction between rooms, as a test.
use std::collections::BTreeMap;
const ALLOWED: &[(&str, &[&str])] = &[
    ("broker-protocol", &[]),
    ("broker-client", &["broker-protocol"]),
    ("broker-log", &["broker-protocol"]),
    ("broker-server", &["broker-protocol", "broker-client", "broker-log"]),
    ("mirror", &["broker-client"]),
    ("loader-store", &[]),
    ("loader-pipeline", &["broker-client", "loader-store"]),
    ("logferry", &["broker-client", "broker-server", "loader-pipeline", "loader-store", "mirror"]),
    ("test-support", &[]),
];
#[test]
fn crates_depend_only_downwards() {
    let out = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .output()
        .expect("cargo metadata");
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).expect("json");
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    for p in v["packages"].as_array().expect("packages") {
        let name = p["name"].as_str().expect("name");
        let ok = allowed
            .get(name)
            .unwrap_or_else(|| panic!("crate {name} has no row in ALLOWED"));
        for d in p["dependencies"].as_array().expect("deps") {
            if d["kind"].is_null() && !d["path"].is_null() {
                let dep = d["name"].as_str().expect("dep");
                assert!(ok.contains(&dep), "{name} must not depend on {dep}");
            }
        }
    }
}
