//! The broker process: listener, handlers, topics.
