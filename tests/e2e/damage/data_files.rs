//! Damage to data files: their bytes, their rows, their places.

use super::{Damage, manifest_of, sign};

pub(super) const DATA_FILES: &[Damage] = &[
    Damage {
        name: "a data file is missing",
        plant: |copy| {
            let file = copy.data();
            copy.remove(&file);
            sign(file, "is in the manifest and not there")
        },
    },
    Damage {
        name: "the file of rejected records is missing",
        plant: |copy| {
            let file = copy.files(3, "rejected").remove(0);
            copy.remove(&file);
            sign(file, "is in the manifest and not there")
        },
    },
    Damage {
        name: "a file is cut short",
        plant: |copy| {
            let file = copy.data();
            let bytes = copy.read(&file);
            copy.write(&file, &bytes[..bytes.len() - 1]);
            sign(file, "bytes, the manifest says")
        },
    },
    Damage {
        name: "a byte of a data page is flipped",
        plant: |copy| {
            let file = copy.data();
            copy.flip(&file, 60);
            sign(file, "has checksum")
        },
    },
    Damage {
        name: "a byte of the footer is flipped",
        plant: |copy| {
            let file = copy.data();
            copy.flip(&file, -40);
            sign(file, "has checksum")
        },
    },
    Damage {
        name: "another sound Parquet file of the same length lies in its place",
        plant: |copy| {
            let file = copy.data();
            let path = copy.path(&file);
            // The footer of an empty file tells of no pages: what lies before it is nobody's.
            let program = "
import os, sys, pyarrow.parquet as pq
path = sys.argv[1]; length = os.path.getsize(path)
pq.write_table(pq.ParquetFile(path).read().slice(0, 0), path, store_schema=False)
small = open(path, 'rb').read()
open(path, 'wb').write(small[:4] + bytes(length - len(small)) + small[4:])
assert os.path.getsize(path) == length and pq.ParquetFile(path).read().num_rows == 0
";
            test_support::python()
                .run(program, &[path.to_str().unwrap()])
                .unwrap();
            sign(file, "has checksum")
        },
    },
    Damage {
        name: "another run's file lies in its place",
        plant: |copy| {
            let file = copy.data();
            copy.write(&file, copy.read(&copy.files(4, "data")[0]));
            sign(file, "the manifest says")
        },
    },
    Damage {
        name: "two files are swapped",
        plant: |copy| {
            let files = copy.files(3, "data");
            copy.rename(&files[0], "aside");
            copy.rename(&files[1], &files[0]);
            copy.rename("aside", &files[1]);
            let sign = |n: usize| (files[n].clone(), "the manifest says");
            vec![sign(0), sign(1)]
        },
    },
    Damage {
        name: "a link lies in place of a file",
        plant: |copy| {
            let file = copy.data();
            copy.rename(&file, "../aside");
            std::os::unix::fs::symlink(copy.path("../aside"), copy.path(&file)).unwrap();
            sign(file, "is a link")
        },
    },
    Damage {
        name: "a row is doubled in a file that was rewritten",
        plant: |copy| {
            let file = copy.data();
            copy.rewrite(&file, "t = pa.concat_tables([t, t.slice(0, 1)])");
            vec![
                (file, "1 offsets of events-"),
                (manifest_of(3), "the data files hold"),
                ("run=000003".to_owned(), "are in the files"),
            ]
        },
    },
    Damage {
        name: "a row is dropped from a file that was rewritten",
        plant: |copy| {
            let file = copy.data();
            copy.rewrite(&file, "t = t.slice(0, t.num_rows - 1)");
            vec![
                (manifest_of(3), "the data files hold"),
                (file, "the manifest says"),
                ("run=000003".to_owned(), "are in the files"),
            ]
        },
    },
    Damage {
        name: "a row has the offset of another run",
        plant: |copy| {
            let file = copy.data();
            let set = "at = t.schema.get_field_index('_offset')\n\
                       moved = pc.subtract(t['_offset'], 30)\n\
                       t = t.set_column(at, t.schema.field(at), moved)";
            copy.rewrite(&file, set);
            vec![
                (file, "lie outside the run's range"),
                ("run=000003".to_owned(), "are in the files"),
            ]
        },
    },
    Damage {
        name: "a row is another partition's",
        plant: |copy| {
            let file = copy.data();
            let set = "at = t.schema.get_field_index('_partition')\n\
                       moved = pc.add(t['_partition'], pa.scalar(7, pa.int32()))\n\
                       t = t.set_column(at, t.schema.field(at), moved)";
            copy.rewrite(&file, set);
            vec![
                (file, "the manifest says none"),
                ("run=000003".to_owned(), "are in the files"),
            ]
        },
    },
    Damage {
        name: "a column has another name",
        plant: |copy| {
            let file = copy.data();
            copy.rewrite(&file, "t = t.rename_columns(['m'] + t.column_names[1:])");
            sign(file, "has the columns m, name, ts")
        },
    },
];
