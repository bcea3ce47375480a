//! The server's side.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{Credential, attribute, nonce, text, xor};
use crate::sasl::Fault;

const FIRST: &str = "first message of the client";
const FINAL: &str = "last message of the client";

/// A client's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFirst {
    username: String,
    nonce: String,
    gs2_header: String,
    bare: String,
}

/// A server that has sent its challenge.
#[derive(Debug)]
pub struct Server {
    credential: Credential,
    nonce: String,
    gs2_header: String,
    /// First message of the client without its header, and the challenge.
    signed: String,
}

impl ClientFirst {
    /// Reads it. Extensions that are not mandatory are ignored.
    ///
    /// # Errors
    /// It is malformed, asks for channel binding, or to act for another user.
    pub fn parse(message: &[u8]) -> Result<Self, Fault> {
        let malformed = Fault::Malformed(FIRST);
        let whole = text(message, FIRST)?;
        let mut parts = whole.splitn(3, ',');
        match parts.next() {
            // `y`: would bind the channel, and thinks that we cannot. It is right.
            Some("n" | "y") => {}
            Some(binding) if binding.starts_with("p=") => return Err(Fault::ChannelBinding),
            _ => return Err(malformed),
        }
        let (Some(identity), Some(bare)) = (parts.next(), parts.next()) else {
            return Err(malformed);
        };
        let gs2_header = whole
            .strip_suffix(bare)
            .ok_or(Fault::Malformed(FIRST))?
            .to_owned();
        let mut attributes = bare.split(',');
        let username = unescaped(attribute(attributes.next(), "n", FIRST)?)?;
        let nonce = attribute(attributes.next(), "r", FIRST)?;
        let printable = |byte: u8| (0x21..=0x7e).contains(&byte);
        if username.is_empty() || nonce.is_empty() || !nonce.bytes().all(printable) {
            return Err(malformed);
        }
        if !identity.is_empty() && unescaped(attribute(Some(identity), "a", FIRST)?)? != username {
            return Err(Fault::OtherIdentity);
        }
        Ok(Self {
            username,
            nonce: nonce.to_owned(),
            gs2_header,
            bare: bare.to_owned(),
        })
    }

    /// Who the client says it is.
    pub fn username(&self) -> &str {
        &self.username
    }
}

impl Server {
    /// Challenges the client: the server and its message.
    ///
    /// # Errors
    /// [`Fault::NoRandom`].
    pub fn challenge(first: ClientFirst, credential: Credential) -> Result<(Self, Vec<u8>), Fault> {
        Ok(Self::challenge_with(first, credential, &nonce()?))
    }

    pub(super) fn challenge_with(
        first: ClientFirst,
        credential: Credential,
        server_nonce: &str,
    ) -> (Self, Vec<u8>) {
        let nonce = [&first.nonce, server_nonce].concat();
        let salt = BASE64_STANDARD.encode(&credential.salt);
        let challenge = format!("r={nonce},s={salt},i={}", credential.iterations);
        let server = Self {
            nonce,
            gs2_header: first.gs2_header,
            signed: [&first.bare, challenge.as_str()].join(","),
            credential,
        };
        (server, challenge.into_bytes())
    }

    /// Checks the client's proof; the last message, by which the server proves itself.
    ///
    /// # Errors
    /// [`Fault::Proof`] if the password was another; or the message is malformed or of another exchange.
    pub fn finish(self, message: &[u8]) -> Result<Vec<u8>, Fault> {
        let message = text(message, FINAL)?;
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(Fault::Malformed(FINAL))?;
        let mut attributes = without_proof.split(',');
        let binding = attribute(attributes.next(), "c", FINAL)?;
        let nonce = attribute(attributes.next(), "r", FINAL)?;
        if binding != BASE64_STANDARD.encode(&self.gs2_header) {
            return Err(Fault::ChannelBinding);
        }
        // As Apache Kafka: librdkafka 2.0 puts its own nonce before the whole one once more.
        if !nonce.ends_with(&self.nonce) {
            return Err(Fault::Nonce);
        }
        let Credential {
            hash,
            stored_key,
            server_key,
            ..
        } = &self.credential;
        let proof = BASE64_STANDARD.decode(proof);
        let proof = proof
            .ok()
            .filter(|proof| proof.len() == hash.len())
            .ok_or(Fault::Malformed(FINAL))?;
        let signed = [&self.signed, without_proof].join(",");
        let signature = hash.sign(stored_key, signed.as_bytes());
        let client_key = xor(&proof, signature.as_ref());
        // Digests are compared, of which the client knows no part beforehand: time tells it nothing.
        if hash.digest(&client_key) != *stored_key {
            return Err(Fault::Proof);
        }
        let signature = hash.sign(server_key, signed.as_bytes());
        Ok(format!("v={}", BASE64_STANDARD.encode(signature.as_ref())).into_bytes())
    }
}

/// A name as it is: `=2C` stands for a comma, `=3D` for `=`.
fn unescaped(name: &str) -> Result<String, Fault> {
    let plain = name.replace("=2C", ",");
    let rest = name.replace("=2C", "").replace("=3D", "");
    if rest.contains('=') {
        return Err(Fault::Malformed(FIRST));
    }
    Ok(plain.replace("=3D", "="))
}
