//! `InitProducerId` 0–4: a producer id for an idempotent producer.
//!
//! Each request without a transactional id gets a new id with epoch 0, as in Apache Kafka, also when it names
//! an id it has. Deviation: there are no transactions, a transactional id is `UNSUPPORTED_VERSION`.

use broker_protocol::{
    ErrorCode,
    messages::{InitProducerIdRequest, InitProducerIdResponse},
};
use tracing::warn;

use super::Context;

pub(super) async fn handle(
    context: &Context<'_>,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let refuse = |code: ErrorCode| InitProducerIdResponse {
        error_code: code.code(),
        producer_id: -1,
        producer_epoch: -1,
        ..InitProducerIdResponse::default()
    };
    if request.transactional_id.is_some() {
        return refuse(ErrorCode::UnsupportedVersion);
    }
    match context.broker.next_producer_id().await {
        Ok(producer_id) => InitProducerIdResponse {
            producer_id,
            producer_epoch: 0,
            ..InitProducerIdResponse::default()
        },
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "no producer id");
            // Retriable for producers, unlike a storage error here.
            refuse(ErrorCode::CoordinatorNotAvailable)
        }
    }
}
