//! One partition on disk: segments, indexes, recovery.
