//! `InitProducerId` (key 22): what an idempotent producer asks for first.

use super::prelude::*;

api! {
    InitProducerId = 22, versions 0..=5, flexible 2.., InitProducerIdRequest => InitProducerIdResponse;

    /// Asks for a producer id and epoch.
    pub struct InitProducerIdRequest {
        /// Transactional id, null for a producer that is only idempotent.
        transactional_id: Option<ByteString> [..] nullable,
        /// After how long without a sign of life the broker aborts a transaction, in milliseconds.
        transaction_timeout_ms: i32 [..],
        /// The id the producer has, −1 for none.
        producer_id: i64 [3..] = -1,
        /// The epoch the producer has, −1 for none.
        producer_epoch: i16 [3..] = -1,
    }

    /// The producer id.
    pub struct InitProducerIdResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// The id, −1 with an error.
        producer_id: i64 [..] = -1,
        /// The epoch.
        producer_epoch: i16 [..],
    }
}
