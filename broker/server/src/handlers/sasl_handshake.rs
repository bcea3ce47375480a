//! `SaslHandshake` 0–1: which mechanism the client authenticates by.
//!
//! Version 0 is offered because librdkafka looks for it before it believes in SASL at all, and refused with
//! `UNSUPPORTED_VERSION` when it is used: after it tokens would travel without `SaslAuthenticate`. Deviation from
//! Apache Kafka, which still does that. After authentication, and on listeners without SASL, the answer is
//! `ILLEGAL_SASL_STATE`, as there.

use broker_protocol::{
    ErrorCode,
    messages::{SaslHandshakeRequest, SaslHandshakeResponse},
};

use super::Context;
use crate::security::Session;

/// First version after which tokens travel in `SaslAuthenticate`.
const WITH_AUTHENTICATE: i16 = 1;

/// Before authentication.
pub(super) fn handle(
    context: &Context<'_>,
    session: &mut Session,
    version: i16,
    request: &SaslHandshakeRequest,
) -> SaslHandshakeResponse {
    if version < WITH_AUTHENTICATE {
        *session = Session::Failed("SaslHandshake version 0".to_owned());
        return refused(ErrorCode::UnsupportedVersion);
    }
    match context.broker.security.users() {
        Some(users) => session.handshake(&request.mechanism, users),
        None => too_late(),
    }
}

/// After authentication, or where there is none.
pub(super) fn too_late() -> SaslHandshakeResponse {
    refused(ErrorCode::IllegalSaslState)
}

fn refused(code: ErrorCode) -> SaslHandshakeResponse {
    SaslHandshakeResponse {
        error_code: code.code(),
        ..SaslHandshakeResponse::default()
    }
}
