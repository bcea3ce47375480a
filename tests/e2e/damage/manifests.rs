//! Manifests that lie, some of them sealed again so that they look sound.

use serde_json::{Value, json};

use super::{Damage, add, entry, manifest_of, sign};

pub(super) const MANIFESTS: &[Damage] = &[
    Damage {
        name: "a manifest was edited",
        plant: |copy| {
            copy.retype(&manifest_of(3), "\"start\": 30", "\"start\": 31");
            sign(manifest_of(3), "its body gives")
        },
    },
    Damage {
        name: "a manifest is cut short",
        plant: |copy| {
            let bytes = copy.read(&manifest_of(3));
            copy.write(&manifest_of(3), &bytes[..bytes.len() / 2]);
            sign(manifest_of(3), "not a sealed document")
        },
    },
    Damage {
        name: "a manifest is missing",
        plant: |copy| {
            copy.remove(&manifest_of(3));
            sign(manifest_of(3), "the run has no manifest")
        },
    },
    Damage {
        name: "another document lies in place of a manifest",
        plant: |copy| {
            copy.write(&manifest_of(3), copy.read(".logferry/dataset.json"));
            sign(
                manifest_of(3),
                "is a logferry-dataset, not a logferry-manifest",
            )
        },
    },
    Damage {
        name: "a manifest is of a version that this build does not read",
        plant: |copy| {
            copy.retype(&manifest_of(3), "\"version\":1", "\"version\":2");
            sign(manifest_of(3), "has version 2")
        },
    },
    Damage {
        name: "a start is no longer the former end",
        plant: |copy| {
            copy.edit(3, |body| {
                add(&mut body["partitions"][0]["start"], -1);
                add(&mut body["ranges"][0]["start"], -1);
                add(&mut body["ranges"][0]["counts"]["holes"], 1);
            });
            sign(manifest_of(3), "starts at 29, run=000002 ended at 30 (I1)")
        },
    },
    Damage {
        name: "an end leaves a gap before the next run",
        plant: |copy| {
            copy.edit(3, |body| {
                add(&mut body["partitions"][1]["end"], -1);
                add(&mut body["ranges"][1]["end"], -1);
                add(&mut body["ranges"][1]["counts"]["rows"], -1);
            });
            vec![
                (manifest_of(4), "starts at 45, run=000003 ended at 44 (I1)"),
                (manifest_of(3), "the data files hold"),
                ("run=000003/dt=".to_owned(), "lie outside"),
            ]
        },
    },
    Damage {
        name: "a position moved and its range did not",
        plant: |copy| {
            copy.edit(5, |body| add(&mut body["partitions"][0]["end"], 1));
            sign(manifest_of(5), "its ranges say otherwise (I1)")
        },
    },
    Damage {
        name: "the counts of a range do not add up",
        plant: |copy| {
            copy.edit(3, |body| {
                add(&mut body["ranges"][0]["counts"]["rows"], -1);
            });
            vec![
                (manifest_of(3), "add up to 14, not 15 (I2)"),
                ("run=000003".to_owned(), "are in the files"),
            ]
        },
    },
    Damage {
        name: "rows were counted as holes",
        plant: |copy| {
            copy.edit(3, |body| {
                add(&mut body["ranges"][0]["counts"]["rows"], -1);
                add(&mut body["ranges"][0]["counts"]["holes"], 1);
            });
            vec![
                (
                    manifest_of(3),
                    "the data files hold 39 rows, the ranges count 38 (I2)",
                ),
                ("run=000003".to_owned(), "are in the files"),
            ]
        },
    },
    Damage {
        name: "numbers at their limits",
        plant: |copy| {
            copy.edit(3, |body| {
                body["ranges"][0]["start"] = i64::MIN.into();
                body["ranges"][0]["end"] = i64::MAX.into();
                body["ranges"][0]["counts"]["rows"] = u64::MAX.into();
                body["files"][0]["rows"] = u64::MAX.into();
            });
            vec![
                (manifest_of(3), "add up to"),
                ("run=000003".to_owned(), "are in the files"),
                ("run=000003/".to_owned(), "its footer counts"),
            ]
        },
    },
    Damage {
        name: "the run before was another one",
        plant: |copy| {
            let uuid = copy.manifest(1)["uuid"].clone();
            copy.edit(4, |body| body["previous"]["uuid"] = uuid);
            sign(manifest_of(4), "continues another run=000003 than")
        },
    },
    Damage {
        name: "the run before has another number",
        plant: |copy| {
            copy.edit(4, |body| body["previous"]["number"] = 2.into());
            sign(
                manifest_of(4),
                "continues run=000002, which is not the run before it",
            )
        },
    },
    Damage {
        name: "no run before is named",
        plant: |copy| {
            copy.edit(4, |body| body["previous"] = Value::Null);
            sign(manifest_of(4), "names no run before it")
        },
    },
    Damage {
        name: "the rows of a file are wrong",
        plant: |copy| {
            let file = copy.data();
            copy.edit(3, |body| add(&mut entry(body, &file)["rows"], 1));
            vec![
                (file, "its footer counts"),
                (manifest_of(3), "the data files hold"),
            ]
        },
    },
    Damage {
        name: "a partition vanished",
        plant: |copy| {
            copy.edit(5, |body| {
                body["partitions"].as_array_mut().unwrap().remove(2);
                body["ranges"].as_array_mut().unwrap().remove(2);
            });
            vec![
                (
                    manifest_of(5),
                    "events-2: known to run=000004 and not listed (I1)",
                ),
                ("run=000005/".to_owned(), "lie outside"),
            ]
        },
    },
    Damage {
        name: "a partition is listed twice",
        plant: |copy| {
            copy.edit(5, |body| {
                let again = body["partitions"][2].clone();
                body["partitions"].as_array_mut().unwrap().push(again);
            });
            sign(manifest_of(5), "lists a partition twice")
        },
    },
    Damage {
        name: "a gap is forged",
        plant: |copy| {
            let end = copy.manifest(2)["partitions"][0]["end"].as_i64().unwrap();
            copy.edit(3, |body| {
                body["accepted_gaps"] = json!([{"topic": "events", "partition": 0, "reason": "retention",
                     "previous_end": end - 5, "start": end}]);
            });
            sign(
                manifest_of(3),
                "accepts a gap from 25 to 30 that nothing made (I6)",
            )
        },
    },
    Damage {
        name: "a topic became another one and nobody accepted it",
        plant: |copy| {
            copy.edit(5, |body| {
                body["partitions"][0]["topic_id"] = "AAAAAAAAAAAAAAAAAAAAAQ".into();
            });
            sign(manifest_of(5), "goes on in another topic, by its id")
        },
    },
    Damage {
        name: "a file is listed twice",
        plant: |copy| {
            let file = copy.data();
            copy.edit(3, |body| {
                let again = entry(body, &file).clone();
                body["files"].as_array_mut().unwrap().push(again);
            });
            vec![
                (manifest_of(3), " twice"),
                (file, "are in the run twice"),
                ("run=000003".to_owned(), "are in the files"),
            ]
        },
    },
    Damage {
        name: "a listed path leads out of the run",
        plant: |copy| {
            let (file, other) = (copy.data(), copy.files(4, "data").remove(0));
            copy.edit(3, |body| {
                entry(body, &file)["path"] = format!("../{other}").into();
            });
            vec![
                (manifest_of(3), "is no path inside the run"),
                (file, "is not in the manifest"),
            ]
        },
    },
    Damage {
        name: "rejected records are listed as rows",
        plant: |copy| {
            let file = copy.files(3, "rejected").remove(0);
            copy.edit(3, |body| entry(body, &file)["kind"] = "data".into());
            vec![
                (manifest_of(3), "lies where its kind does not"),
                (file, "has the columns topic, partition, offset"),
            ]
        },
    },
    Damage {
        name: "a file is to hold other offsets than it does",
        plant: |copy| {
            let file = copy.data();
            copy.edit(3, |body| {
                add(&mut entry(body, &file)["ranges"][0]["end"], -1);
            });
            sign(file, "the manifest says")
        },
    },
    Damage {
        name: "the columns changed as no load would",
        plant: |copy| {
            copy.edit(5, |body| {
                body["schema"]["columns"][0]["type"] = "string".into();
            });
            sign(manifest_of(5), "its columns cannot follow")
        },
    },
];
