//! Damage that names show: what is missing, strange, or under another name.

use std::fs;

use super::{Copy, Damage, manifest_of, sign};

pub(super) const NAMES: &[Damage] = &[
    Damage {
        name: "a strange file lies beside the data",
        plant: |copy| {
            let strange = copy.data().replace("part-", "copy-");
            copy.write(&strange, "strange");
            sign(strange, "is not in the manifest")
        },
    },
    Damage {
        name: "a strange empty directory lies in a run",
        plant: |copy| {
            fs::create_dir(copy.path("run=000003/dt=1999-01-01")).unwrap();
            sign("run=000003/dt=1999-01-01", "is not in the manifest")
        },
    },
    Damage {
        name: "a strange directory lies in the dataset",
        plant: |copy| {
            fs::create_dir(copy.path("dt=2026-11-30")).unwrap();
            sign("dt=2026-11-30", "is none of logferry's")
        },
    },
    Damage {
        name: "a loose file lies in the dataset",
        plant: |copy| {
            copy.write("more.parquet", copy.read(&copy.data()));
            sign("more.parquet", "is none of logferry's")
        },
    },
    Damage {
        name: "_SUCCESS is missing",
        plant: |copy| {
            copy.remove("run=000003/_SUCCESS");
            sign("run=000003/_SUCCESS", "is missing")
        },
    },
    Damage {
        name: "_SUCCESS has content",
        plant: |copy| {
            copy.write("run=000003/_SUCCESS", "{}");
            sign("run=000003/_SUCCESS", "it is to be empty")
        },
    },
    Damage {
        name: "a run in the middle is gone",
        plant: |copy| {
            fs::remove_dir_all(copy.path("run=000003")).unwrap();
            sign(
                "run=000003",
                "is missing: run=000004 was published after it",
            )
        },
    },
    Damage {
        name: "the first runs are gone",
        plant: |copy| {
            fs::remove_dir_all(copy.path("run=000001")).unwrap();
            fs::remove_dir_all(copy.path("run=000002")).unwrap();
            sign("run=000001", "up to run=000002, are missing")
        },
    },
    Damage {
        name: "the newest run is gone",
        plant: |copy| {
            fs::remove_dir_all(copy.path("run=000005")).unwrap();
            sign("run=000005", "this run was published and is gone")
        },
    },
    Damage {
        name: "a run lies there again under the next number",
        plant: |copy| {
            copy.rename("run=000005", "aside");
            let again = Copy::of(&copy.path("aside"));
            copy.rename("aside", "run=000005");
            fs::rename(&again.root, copy.path("run=000006")).unwrap();
            sign(manifest_of(6), "the manifest says it is run=000005")
        },
    },
    Damage {
        name: "a run's name is badly spelt",
        plant: |copy| {
            copy.rename("run=000005", "run=5");
            vec![
                ("run=5".to_owned(), "is not that of a published run"),
                ("run=000005".to_owned(), "is gone"),
            ]
        },
    },
    Damage {
        name: "a file has the name of a run",
        plant: |copy| {
            copy.write("run=000006", "");
            sign("run=000006", "is not that of a published run")
        },
    },
    Damage {
        name: "`last` is beyond the newest run",
        plant: |copy| {
            copy.write(".logferry/last", "99\n");
            sign("run=000099", "this run was published and is gone")
        },
    },
    Damage {
        name: "`last` holds something else",
        plant: |copy| {
            copy.write(".logferry/last", "five\n");
            sign(".logferry/last", "holds no run number")
        },
    },
    Damage {
        name: "dataset.json is damaged",
        plant: |copy| {
            copy.retype(
                ".logferry/dataset.json",
                "\"made_at_ms\": 1",
                "\"made_at_ms\": 2",
            );
            sign(".logferry/dataset.json", "its body gives")
        },
    },
    Damage {
        name: "dataset.json is missing",
        plant: |copy| {
            copy.remove(".logferry/dataset.json");
            sign(".logferry/dataset.json", "is missing")
        },
    },
    Damage {
        name: "data of a pruned run came back",
        plant: |copy| {
            fs::create_dir(copy.path("run=000001/dt=2026-11-30")).unwrap();
            copy.write("run=000001/dt=2026-11-30/part.parquet", "rows");
            let left = "is left in a run that was pruned";
            vec![
                ("run=000001/dt=2026-11-30".to_owned(), left),
                ("run=000001/dt=2026-11-30/part.parquet".to_owned(), left),
            ]
        },
    },
    Damage {
        name: "a pruned run does not say so",
        plant: |copy| {
            copy.remove("run=000001/_pruned.json");
            let file = copy.files(1, "data").remove(0);
            sign(file, "is in the manifest and not there")
        },
    },
    Damage {
        name: "a marker is another run's",
        plant: |copy| {
            copy.write(
                "run=000003/_pruned.json",
                copy.read("run=000001/_pruned.json"),
            );
            sign("run=000003/_pruned.json", "this is another run")
        },
    },
    Damage {
        name: "a marker is damaged",
        plant: |copy| {
            copy.retype("run=000001/_pruned.json", "\"number\": 1", "\"number\": 2");
            sign("run=000001/_pruned.json", "its body gives")
        },
    },
];
