//! Partition ranges to published runs: plan, tasks, decode, group, write, commit, verify.
