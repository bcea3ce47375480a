//! Tests that every store must pass.
