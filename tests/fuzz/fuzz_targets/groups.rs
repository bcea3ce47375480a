//! A record of `__consumer_offsets`, and requests against one group: `broker/server/src/group/fuzzing.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| broker_server::fuzzing::run_group(input));
