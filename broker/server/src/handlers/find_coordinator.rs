//! `FindCoordinator` 0–4: this broker, for every group.
//!
//! Deviation: there are no transactions, so a transactional id has no coordinator; the error is one that clients do not
//! retry. The API is offered from version 0 on because librdkafka up to 2.x takes it for the sign of a broker that
//! knows lz4, and `kcat` uses groups with nothing newer.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator::Coordinator},
};

use super::Context;

/// First version that asks for several.
const SEVERAL: i16 = 4;
/// The type of key that is a group.
const GROUP: i8 = 0;
const NO_TRANSACTIONS: ByteString = ByteString::from_static("this broker has no transactions");

pub(super) fn handle(
    context: &Context<'_>,
    version: i16,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let found = find(context, request.key_type);
    if version < SEVERAL {
        return FindCoordinatorResponse {
            error_code: found.error_code,
            error_message: found.error_message,
            node_id: found.node_id,
            host: found.host,
            port: found.port,
            ..FindCoordinatorResponse::default()
        };
    }
    let coordinators = request.coordinator_keys.into_iter();
    let coordinators = coordinators.map(|key| Coordinator {
        key,
        ..found.clone()
    });
    FindCoordinatorResponse {
        coordinators: coordinators.collect(),
        ..FindCoordinatorResponse::default()
    }
}

fn find(context: &Context<'_>, key_type: i8) -> Coordinator {
    if key_type != GROUP {
        return Coordinator {
            node_id: -1,
            port: -1,
            error_code: ErrorCode::UnsupportedVersion.code(),
            error_message: Some(NO_TRANSACTIONS),
            ..Coordinator::default()
        };
    }
    let (host, port) = context.advertised();
    Coordinator {
        node_id: context.broker.config.node_id,
        host: host.into(),
        port,
        error_message: None,
        ..Coordinator::default()
    }
}
