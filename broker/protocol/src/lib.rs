//! Kafka's wire protocol and record batches: bytes to types and back.
