//! Doors for the fuzzers of `tests/fuzz`; in no build but theirs (`--cfg fuzzing`).

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

use crate::{
    Broker,
    handlers::{self, Answers, Context, Reply},
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

/// Handles requests as a connection does that came by the first listener: `frames` are what follows each length, those to
/// produce that stand together are handled together. The answers, one behind the other, up to where the connection would
/// be closed.
pub async fn answer(broker: &Broker, frames: Vec<Bytes>) -> Bytes {
    let shared = broker.shared();
    let mut out = BytesMut::new();
    let Some(listener) = shared.config.all_listeners().into_iter().next() else {
        return out.freeze();
    };
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
    let mut frames = frames.into_iter().peekable();
    while let Some(first) = frames.next() {
        let mut together = vec![first];
        while together.iter().all(|frame| handlers::is_produce(frame))
            && let Some(next) = frames.next_if(|frame| handlers::is_produce(frame))
        {
            together.push(next);
        }
        let Answers { reply, refused } = handlers::dispatch_all(&context, together).await;
        if let Some(reply) = reply {
            append_whole(reply, &mut out);
        }
        if refused.is_some() {
            break;
        }
    }
    out.freeze()
}

fn append_whole(mut reply: Reply, out: &mut BytesMut) {
    let mut written = 0;
    for (position, slice) in reply.files {
        out.extend_from_slice(&reply.frame.split_to(position - written));
        written = position;
        if let Ok(bytes) = slice.read() {
            out.extend_from_slice(&bytes);
        }
    }
    out.extend_from_slice(&reply.frame);
}
