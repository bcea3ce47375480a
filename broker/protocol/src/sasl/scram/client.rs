//! The client's side.

use std::num::NonZeroU32;

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::hmac;

use super::{Hash, MAX_ITERATIONS, MAX_SALT_BYTES, MIN_ITERATIONS, attribute, nonce, text, xor};
use crate::sasl::{Fault, Secret};

/// No channel binding, no authorization as another user; and the same in base64.
const GS2_HEADER: &str = "n,,";
const GS2_HEADER_BASE64: &str = "biws";
const FIRST: &str = "first message of the server";
const FINAL: &str = "last message of the server";

/// A client that has named itself.
#[derive(Debug)]
pub struct Client {
    hash: Hash,
    nonce: String,
    first_bare: String,
}

/// A client that has proved itself and waits for the server to do so.
#[derive(Debug)]
pub struct Proven {
    expected: hmac::Tag,
}

impl Client {
    /// Begins an exchange: the client and its first message.
    ///
    /// # Errors
    /// [`Fault::NoRandom`].
    pub fn begin(hash: Hash, username: &str) -> Result<(Self, Vec<u8>), Fault> {
        Ok(Self::begin_with(hash, username, nonce()?))
    }

    pub(super) fn begin_with(hash: Hash, username: &str, nonce: String) -> (Self, Vec<u8>) {
        let name = username.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={name},r={nonce}");
        let message = format!("{GS2_HEADER}{first_bare}").into_bytes();
        let client = Self {
            hash,
            nonce,
            first_bare,
        };
        (client, message)
    }

    /// Answers the server's challenge. Computes for milliseconds, up to half a second where the server asks
    /// for [`MAX_ITERATIONS`]: not for a thread that others wait for.
    ///
    /// # Errors
    /// The challenge is malformed, belongs to another exchange, or asks for too few or too many iterations.
    pub fn prove(self, password: &Secret, challenge: &[u8]) -> Result<(Proven, Vec<u8>), Fault> {
        let challenge = text(challenge, FIRST)?;
        let mut parts = challenge.split(',');
        let nonce = attribute(parts.next(), "r", FIRST)?;
        let salt = attribute(parts.next(), "s", FIRST)?;
        let iterations = attribute(parts.next(), "i", FIRST)?;
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err(Fault::Nonce);
        }
        let salt = BASE64_STANDARD
            .decode(salt)
            .ok()
            .filter(|salt| !salt.is_empty() && salt.len() <= MAX_SALT_BYTES)
            .ok_or(Fault::Malformed(FIRST))?;
        let found = iterations.parse().map_err(|_| Fault::Malformed(FIRST))?;
        let rounds = NonZeroU32::new(found)
            .filter(|_| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(&found))
            .ok_or(Fault::Iterations { found })?;

        let hash = self.hash;
        let without_proof = format!("c={GS2_HEADER_BASE64},r={nonce}");
        let signed = [&self.first_bare, challenge, &without_proof].join(",");
        let salted = hash.salted(password.expose(), &salt, rounds);
        let client_key = hmac::sign(&salted, b"Client Key");
        let signature = hash.sign(&hash.digest(client_key.as_ref()), signed.as_bytes());
        let proof = BASE64_STANDARD.encode(xor(client_key.as_ref(), signature.as_ref()));
        let server_key = hmac::sign(&salted, b"Server Key");
        let proven = Proven {
            expected: hash.sign(server_key.as_ref(), signed.as_bytes()),
        };
        Ok((proven, format!("{without_proof},p={proof}").into_bytes()))
    }
}

impl Proven {
    /// Checks the server's last message: whether it, too, knows the password.
    ///
    /// # Errors
    /// It does not, or it says what was wrong.
    pub fn check(self, message: &[u8]) -> Result<(), Fault> {
        let message = text(message, FINAL)?;
        let first = message.split(',').next();
        if let Ok(error) = attribute(first, "e", FINAL) {
            return Err(Fault::Server(error.to_owned()));
        }
        let signature = attribute(first, "v", FINAL)?;
        let signature = BASE64_STANDARD.decode(signature);
        let signature = signature.map_err(|_| Fault::Malformed(FINAL))?;
        // What the server cannot know is compared here, so time tells it nothing; all the same:
        let same = signature.len() == self.expected.as_ref().len()
            && xor(&signature, self.expected.as_ref())
                .iter()
                .fold(0, |any, byte| any | byte)
                == 0;
        if same {
            Ok(())
        } else {
            Err(Fault::ServerProof)
        }
    }
}
