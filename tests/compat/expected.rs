//! The table of clients and capabilities: what every test of `smoke` and the document hold to.
//!
//! A cell is *ok* unless [`LACKS`] or [`KNOWN_GAPS`] has it. A cell of [`KNOWN_GAPS`] that works fails its test: the
//! row goes away in the change that mends it, and the document with it.

use crate::programs::{CLIENTS, Client};

/// A capability, and what its check does.
pub(crate) const CAPABILITIES: [(&str, &str); 17] = [
    (
        "none",
        "50 records with keys and headers, uncompressed, there and back",
    ),
    (
        "gzip",
        "the same, and the batches in the log are compressed so",
    ),
    ("snappy", "as gzip"),
    ("lz4", "as gzip"),
    ("zstd", "as gzip"),
    (
        "records",
        "null and empty keys and values, repeated headers, timestamps",
    ),
    (
        "assign",
        "beginning, end, reading from a chosen offset without a group's offsets",
    ),
    (
        "timestamps",
        "the offset for a time: between records, before all, after all",
    ),
    (
        "group",
        "two members share four partitions, commit with metadata; a later one goes on from there",
    ),
    (
        "group-admin",
        "list, describe, offsets changed and deleted, the group deleted",
    ),
    (
        "topics",
        "create with settings, once only; more partitions; describe; delete",
    ),
    ("cluster", "nodes, controller, cluster id"),
    ("configs", "describe, change, back to the default"),
    ("append", "a value appended to a list and taken out of it"),
    ("delete-records", "the log's start moved up"),
    ("log-dirs", "sizes of partitions by directory"),
    (
        "idempotent",
        "an idempotent producer in many small batches: offsets without gap or repeat",
    ),
];

/// What a client cannot do with any broker.
pub(crate) const LACKS: &[(Client, &[&str], &str)] = &[
    (
        Client::Kcat,
        &[
            "group-admin",
            "topics",
            "configs",
            "append",
            "delete-records",
            "log-dirs",
        ],
        "kcat has no such command",
    ),
    (Client::ConfluentKafka, &["log-dirs"], "not in the client"),
    (
        Client::Kafkajs,
        &["lz4", "zstd"],
        "not in the client; plug-ins for them are native code",
    ),
    (
        Client::Kafkajs,
        &["append", "log-dirs"],
        "not in the client",
    ),
    (
        Client::Aiokafka,
        &["append", "log-dirs"],
        "not in the client",
    ),
];

/// What our broker cannot do yet. Empty, but for what later issues bring.
pub(crate) const KNOWN_GAPS: &[(&[Client], &[&str], &str)] = &[];

/// What a cell must come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Works,
    ClientLacks(&'static str),
    Gap(&'static str),
}

pub(crate) fn cell(client: Client, capability: &str, ours: bool) -> Cell {
    let lacks = LACKS
        .iter()
        .find(|(one, all, _)| *one == client && all.contains(&capability));
    if let Some((_, _, reason)) = lacks {
        return Cell::ClientLacks(reason);
    }
    let gap = KNOWN_GAPS
        .iter()
        .find(|(clients, all, _)| clients.contains(&client) && all.contains(&capability));
    match gap {
        Some((_, _, reason)) if ours => Cell::Gap(reason),
        Some(_) | None => Cell::Works,
    }
}

/// The part of `docs/clients.md` between its marks.
fn document() -> String {
    let mut text = String::from("| |");
    for client in CLIENTS {
        text.push_str(&format!(" {} |", client.name()));
    }
    text.push_str(&format!(
        "\n|---|{}\n| version |",
        "---|".repeat(CLIENTS.len())
    ));
    for client in CLIENTS {
        text.push_str(&format!(" {} |", client.version().0));
    }
    let mut notes: Vec<&str> = Vec::new();
    for (capability, _) in CAPABILITIES {
        text.push_str(&format!("\n| {capability} |"));
        for client in CLIENTS {
            let (word, reason) = match cell(client, capability, true) {
                Cell::Works => {
                    text.push_str(" ok |");
                    continue;
                }
                Cell::ClientLacks(reason) => ("n/a", reason),
                Cell::Gap(reason) => ("**no**", reason),
            };
            let known = notes.iter().position(|note| *note == reason);
            let number = known.unwrap_or_else(|| {
                notes.push(reason);
                notes.len() - 1
            });
            text.push_str(&format!(" {word} ({}) |", number + 1));
        }
    }
    text.push_str("\n\n");
    for (index, note) in notes.iter().enumerate() {
        text.push_str(&format!("{}. {note}\n", index + 1));
    }
    text.push_str("\n| capability | its check |\n|---|---|\n");
    for (capability, what) in CAPABILITIES {
        text.push_str(&format!("| {capability} | {what} |\n"));
    }
    text
}

#[test]
fn the_document_shows_what_the_tests_expect() {
    let text = include_str!("../../docs/clients.md");
    let (_, rest) = text
        .split_once("<!-- begin: tests/compat/expected.rs -->\n")
        .unwrap();
    let (shown, _) = rest.split_once("<!-- end -->").unwrap();
    let wanted = document();
    assert!(
        shown == wanted,
        "docs/clients.md must have between its marks:\n{wanted}"
    );
}

#[test]
fn every_row_names_capabilities_that_exist_and_no_cell_is_named_twice() {
    let known = |capability: &&str| CAPABILITIES.iter().any(|(name, _)| name == capability);
    let mut named = Vec::new();
    for (client, capabilities, _) in LACKS {
        named.extend(capabilities.iter().map(|capability| (*client, *capability)));
    }
    for (clients, capabilities, _) in KNOWN_GAPS {
        for client in *clients {
            named.extend(capabilities.iter().map(|capability| (*client, *capability)));
        }
    }
    for (index, (client, capability)) in named.iter().enumerate() {
        assert!(known(capability), "no capability {capability}");
        let again = named[..index].contains(&(*client, *capability));
        assert!(!again, "{} {capability} is named twice", client.name());
    }
}
