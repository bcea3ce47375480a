//! The `logferry` binary.
fn main() {}
