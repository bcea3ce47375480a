//! `SaslAuthenticate` (key 36): one token of a SASL mechanism each way.

use super::prelude::*;

api! {
    SaslAuthenticate = 36, versions 0..=2, flexible 2.., SaslAuthenticateRequest => SaslAuthenticateResponse;

    /// The client's token. `Debug` shows it, and PLAIN's holds the password: this message is never to be logged.
    pub struct SaslAuthenticateRequest {
        /// The token, in the mechanism's own form.
        auth_bytes: Bytes [..],
    }

    /// The broker's token.
    pub struct SaslAuthenticateResponse {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [..] nullable,
        /// The token, in the mechanism's own form.
        auth_bytes: Bytes [..],
        /// After how long the client must authenticate anew, in milliseconds; 0 for never.
        session_lifetime_ms: i64 [1..] ignorable,
    }
}
