//! `SaslAuthenticate` 0–2: the tokens of the mechanism that `SaslHandshake` named.
//!
//! A failure is answered with `SASL_AUTHENTICATION_FAILED` and one message for every reason, after a delay, and
//! closes the connection, as in Apache Kafka. Deviations: a SCRAM user who does not exist gets a challenge all the
//! same and fails at the end, like one with a wrong password; names of delegation tokens are users like others.
//! The lifetime of a session is 0: nobody must authenticate anew, and who tries gets `ILLEGAL_SASL_STATE`.

use broker_protocol::{
    ErrorCode,
    messages::{SaslAuthenticateRequest, SaslAuthenticateResponse},
};

use super::Context;
use crate::security::Session;

/// Before authentication.
pub(super) fn handle(
    context: &Context<'_>,
    session: &mut Session,
    request: &SaslAuthenticateRequest,
) -> SaslAuthenticateResponse {
    match context.broker.security.users() {
        Some(users) => session.authenticate(&request.auth_bytes, users),
        None => too_late(),
    }
}

/// After authentication, or where there is none.
pub(super) fn too_late() -> SaslAuthenticateResponse {
    SaslAuthenticateResponse {
        error_code: ErrorCode::IllegalSaslState.code(),
        error_message: Some("this connection does not authenticate now".into()),
        ..SaslAuthenticateResponse::default()
    }
}
