//! Write-once storage with a rename that never overwrites: local directories and HDFS.
