//! Real services for tests: Apache Kafka, HDFS; each started once, stopped by pid.
