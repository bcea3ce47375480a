//! Doors for the fuzzers of `tests/fuzz`; in no build but theirs (`--cfg fuzzing`).

use std::net::SocketAddr;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::{
    Broker,
    handlers::{self, Context},
    security::Principal,
};

/// Plays the bytes as requests against one group.
///
/// # Panics
/// The group breaks a rule.
pub fn run_group(input: &[u8]) {
    crate::group::fuzzing::run(input);
}

/// Lets a broker that is not served answer requests about groups.
pub async fn load_groups(broker: &Broker) {
    broker.shared().groups.load().await;
}

/// Handles one request as a connection does that came by the first listener: `frame` is what follows the length.
/// `None` if the connection would be closed, or the request wants no answer.
pub async fn answer(broker: &Broker, frame: Bytes) -> Option<Bytes> {
    let shared = broker.shared();
    let listener = shared.config.all_listeners().into_iter().next()?;
    let address = SocketAddr::from(([127, 0, 0, 1], 9092));
    let (stop, principal) = (CancellationToken::new(), Principal::anonymous());
    let context = Context {
        broker: shared,
        stop: &stop,
        listener: &listener,
        principal: &principal,
        local: address,
        peer: address,
    };
    let reply = handlers::dispatch(&context, frame).await.ok()??;
    Some(reply.frame.freeze())
}
