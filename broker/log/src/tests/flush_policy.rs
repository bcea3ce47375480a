//! What owes a flush, and what a flush shows.

use std::io;

use super::*;
use crate::disk::faulty::{Fault, Operation};
use crate::{Error, Visibility};

#[test]
fn so_many_unflushed_records_owe_a_flush() {
    let fixture = Fixture::new(LogConfig {
        flush_messages: 5,
        ..LogConfig::default()
    });
    let mut log = fixture.create();
    assert!(!log.owes_flush());
    log.append_one(&batch(4), 0, 0).unwrap();
    assert!(!log.owes_flush());
    log.append_one(&batch(1), 0, 0).unwrap();
    assert!(log.owes_flush());
    log.flush().unwrap();
    assert!(!log.owes_flush());
    assert_eq!(log.unflushed_records(), 0);
}

#[test]
fn the_high_watermark_follows_the_flush_where_the_topic_wants_it() {
    let flushed = LogConfig {
        visibility: Visibility::Flushed,
        ..LogConfig::default()
    };
    let fixture = Fixture::new(flushed.clone());
    let mut log = fixture.create();
    log.append_one(&batch(2), 0, 0).unwrap();
    assert!(!log.advance_high_watermark());
    assert_eq!(log.high_watermark(), 0);
    log.flush().unwrap();
    assert!(log.advance_high_watermark());
    assert_eq!(log.high_watermark(), 2);
    // What was visible stays so when the rule changes.
    log.set_config(LogConfig::default());
    log.append_one(&batch(2), 0, 0).unwrap();
    assert!(log.advance_high_watermark());
    log.set_config(flushed);
    assert!(!log.advance_high_watermark());
    assert_eq!(log.high_watermark(), 4);
}

#[test]
fn after_a_failed_sync_no_other_flush_begins() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&batch(2), 0, 0).unwrap();
    fixture
        .disk
        .inject(Fault::once(Operation::Sync, ".log", io::ErrorKind::Other));
    assert!(log.begin_flush().unwrap().run().is_err());
    assert!(matches!(log.begin_flush(), Err(Error::Offline { .. })));
}
