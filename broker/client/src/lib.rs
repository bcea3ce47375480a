//! A tokio client for Kafka's protocol: metadata, fetch of ranges, offsets, producing.
