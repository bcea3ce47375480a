//! `SaslHandshake` (key 17): the client names its SASL mechanism.

use super::prelude::*;

api! {
    SaslHandshake = 17, versions 0..=1, flexible 2.., SaslHandshakeRequest => SaslHandshakeResponse;

    /// Asks to authenticate by a mechanism. After version 1 the tokens travel in `SaslAuthenticate`.
    pub struct SaslHandshakeRequest {
        /// Name of the mechanism, such as `SCRAM-SHA-512`.
        mechanism: ByteString [..],
    }

    /// Whether the mechanism is on offer.
    pub struct SaslHandshakeResponse {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Names of the mechanisms on offer.
        mechanisms: Vec<ByteString> [..],
    }
}
