//! The SASL exchange of one connection: a state machine without I/O.
//!
//! ```text
//!  Start ── SaslHandshake ─► Chosen ── SaslAuthenticate ─► Done        (PLAIN)
//!                              └─ SaslAuthenticate ─► Challenged ── SaslAuthenticate ─► Done   (SCRAM)
//! ```
//!
//! Whatever does not fit ends in `Failed`: its answer is the last one.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{SaslAuthenticateResponse, SaslHandshakeResponse},
    sasl::{
        Fault, Mechanism, plain,
        scram::{ClientFirst, Server},
    },
};
use bytes::Bytes;

use super::{Principal, users::Users};

/// The same for every reason.
const FAILED: ByteString = ByteString::from_static("authentication failed: invalid credentials");

/// Where the exchange stands.
#[derive(Debug)]
pub(crate) enum Session {
    /// No mechanism is named yet.
    Start,
    /// A mechanism is named.
    Chosen(Mechanism),
    /// A SCRAM challenge was sent to the user of this name.
    Challenged(Server, String),
    /// The client is who it says.
    Done(Principal),
    /// The connection ends, for this reason, which is not for the client.
    Failed(String),
}

impl Session {
    /// The client names a mechanism.
    pub(crate) fn handshake(&mut self, wanted: &str, users: &Users) -> SaslHandshakeResponse {
        let offered = &users.config().mechanisms;
        let answer = |code: ErrorCode| SaslHandshakeResponse {
            error_code: code.code(),
            mechanisms: offered
                .iter()
                .map(|mechanism| ByteString::from_static(mechanism.name()))
                .collect(),
        };
        if !matches!(self, Self::Start) {
            *self = Self::Failed("a second SaslHandshake".to_owned());
            return answer(ErrorCode::IllegalSaslState);
        }
        let known = offered.iter().find(|mechanism| mechanism.name() == wanted);
        let Some(mechanism) = known else {
            *self = Self::Failed("a mechanism that is not on offer".to_owned());
            return answer(ErrorCode::UnsupportedSaslMechanism);
        };
        *self = Self::Chosen(*mechanism);
        answer(ErrorCode::None)
    }

    /// The client sends a token.
    pub(crate) fn authenticate(&mut self, token: &[u8], users: &Users) -> SaslAuthenticateResponse {
        let state = std::mem::replace(self, Self::Start);
        let stepped = match state {
            Self::Chosen(Mechanism::Plain) => plain_step(token, users),
            Self::Chosen(mechanism @ (Mechanism::ScramSha256 | Mechanism::ScramSha512)) => {
                challenge(mechanism, token, users)
            }
            Self::Challenged(server, username) => {
                let done = |answer| (Self::Done(Principal::user(&username)), answer);
                server.finish(token).map(done)
            }
            Self::Start | Self::Done(_) | Self::Failed(_) => {
                *self = Self::Failed("SaslAuthenticate before SaslHandshake".to_owned());
                return SaslAuthenticateResponse {
                    error_code: ErrorCode::IllegalSaslState.code(),
                    error_message: Some("SaslHandshake comes first".into()),
                    ..SaslAuthenticateResponse::default()
                };
            }
        };
        match stepped {
            Ok((next, answer)) => {
                *self = next;
                SaslAuthenticateResponse {
                    error_message: None,
                    auth_bytes: answer.into(),
                    ..SaslAuthenticateResponse::default()
                }
            }
            Err(fault) => {
                *self = Self::Failed(fault.to_string());
                SaslAuthenticateResponse {
                    error_code: ErrorCode::SaslAuthenticationFailed.code(),
                    error_message: Some(FAILED),
                    auth_bytes: Bytes::new(),
                    ..SaslAuthenticateResponse::default()
                }
            }
        }
    }
}

fn plain_step(token: &[u8], users: &Users) -> Result<(Session, Vec<u8>), Fault> {
    let (username, password) = plain::decode(token)?;
    if !users.has_password(username, password) {
        return Err(Fault::Proof);
    }
    Ok((Session::Done(Principal::user(username)), Vec::new()))
}

fn challenge(
    mechanism: Mechanism,
    token: &[u8],
    users: &Users,
) -> Result<(Session, Vec<u8>), Fault> {
    let first = ClientFirst::parse(token)?;
    let username = first.username().to_owned();
    let hash = mechanism
        .scram()
        .ok_or(Fault::Malformed("SCRAM mechanism"))?;
    let (server, challenge) = Server::challenge(first, users.credential(hash, &username))?;
    Ok((Session::Challenged(server, username), challenge))
}
