//! Tests against a scripted peer: what a connection, a range and a producer do when the other end
//! misbehaves.

mod connection;
mod peer;
mod producer;
mod range;
