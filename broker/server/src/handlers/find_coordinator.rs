//! `FindCoordinator` 0–4: there is none, and the answer says so.
//!
//! Groups and transactions are not served yet. The API is offered all the same, from version 0 on, because
//! librdkafka up to 2.x takes it for the sign of a broker that knows lz4: without it `kcat -z lz4` silently
//! sends uncompressed. The error is one that clients do not retry.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator::Coordinator},
};

/// First version that asks for several.
const SEVERAL: i16 = 4;
const MESSAGE: ByteString =
    ByteString::from_static("this broker has no consumer groups and no transactions");

pub(super) fn handle(version: i16, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let error_code = ErrorCode::UnsupportedVersion.code();
    if version < SEVERAL {
        return FindCoordinatorResponse {
            error_code,
            error_message: Some(MESSAGE),
            node_id: -1,
            port: -1,
            ..FindCoordinatorResponse::default()
        };
    }
    let coordinator = |key: ByteString| Coordinator {
        key,
        node_id: -1,
        port: -1,
        error_code,
        error_message: Some(MESSAGE),
        ..Coordinator::default()
    };
    FindCoordinatorResponse {
        coordinators: request
            .coordinator_keys
            .into_iter()
            .map(coordinator)
            .collect(),
        ..FindCoordinatorResponse::default()
    }
}
