//! SCRAM (RFC 5802, RFC 7677) without channel binding: both sides of the exchange, and what a server keeps.
//!
//! ```text
//!  client                                        server
//!  Client::begin    n,,n=NAME,r=A ─────────────► ClientFirst::parse
//!                   ◄──────────── r=AB,s=SALT,i=N Server::challenge
//!  Client::prove    c=biws,r=AB,p=PROOF ───────► Server::finish: the client knows the password
//!  Proven::check    ◄───────────── v=SIGNATURE    the server knows it, too
//! ```

mod client;
mod server;
#[cfg(test)]
mod tests;

use std::{fmt, num::NonZeroU32};

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{digest, hmac, pbkdf2};

use super::{Fault, random};

pub use client::{Client, Proven};
pub use server::{ClientFirst, Server};

/// Fewest iterations that a client accepts and a server stores, Kafka's bound.
pub const MIN_ITERATIONS: u32 = 4096;
/// Most iterations that a client computes: half a second on a slow processor.
pub const MAX_ITERATIONS: u32 = 1_000_000;
/// Bytes of a salt made here.
const SALT_BYTES: usize = 16;
/// Longest salt that is taken.
const MAX_SALT_BYTES: usize = 1024;

/// What a SCRAM mechanism hashes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Hash {
    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    fn pbkdf2(self) -> pbkdf2::Algorithm {
        match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        }
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes).as_ref().to_vec()
    }

    /// Bytes of a digest.
    const fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// `SaltedPassword` as the key of what follows from it. Computes for milliseconds.
    fn salted(self, password: &str, salt: &[u8], iterations: NonZeroU32) -> hmac::Key {
        let mut salted = zeroize::Zeroizing::new(vec![0; self.len()]);
        let algorithm = self.pbkdf2();
        pbkdf2::derive(
            algorithm,
            iterations,
            salt,
            password.as_bytes(),
            &mut salted,
        );
        hmac::Key::new(self.hmac(), &salted)
    }

    fn sign(self, key: &[u8], message: &[u8]) -> hmac::Tag {
        hmac::sign(&hmac::Key::new(self.hmac(), key), message)
    }
}

/// What a server keeps about one user's password: enough to check a proof, not enough to make one.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    hash: Hash,
    salt: Vec<u8>,
    iterations: u32,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Credential");
        debug.field("hash", &self.hash);
        debug.field("iterations", &self.iterations);
        debug.finish_non_exhaustive()
    }
}

/// Text that is no stored credential. The text is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no SCRAM credential: {0}")]
pub struct BadCredential(&'static str);

impl Credential {
    /// From a password, with a fresh salt and [`MIN_ITERATIONS`]. Computes for milliseconds.
    ///
    /// # Errors
    /// [`Fault::NoRandom`].
    pub fn new(hash: Hash, password: &str) -> Result<Self, Fault> {
        let salt: [u8; SALT_BYTES] = random()?;
        Ok(Self::derive(hash, password, &salt, MIN_ITERATIONS))
    }

    /// From a password, with this salt and this number of iterations; 0 counts as 1.
    pub fn derive(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Self {
        let rounds = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
        let salted = hash.salted(password, salt, rounds);
        Self {
            hash,
            salt: salt.to_vec(),
            iterations: rounds.get(),
            stored_key: hash.digest(hmac::sign(&salted, b"Client Key").as_ref()),
            server_key: hmac::sign(&salted, b"Server Key").as_ref().to_vec(),
        }
    }

    /// One that no password fits, for a user who does not exist: the same `seed` gives the same salt, so that
    /// the exchange looks as for one who does.
    pub fn impossible(hash: Hash, seed: &[u8; 32], username: &str) -> Self {
        let of = |what: &str| Hash::Sha256.sign(seed, [what, username].concat().as_bytes());
        let mut salt = of("salt").as_ref().to_vec();
        salt.truncate(SALT_BYTES);
        // A stored key must be the digest of something that the client can know; this is the digest of nothing.
        let key = |what| {
            let mut bytes = of(what).as_ref().repeat(2);
            bytes.truncate(hash.len());
            bytes
        };
        Self {
            hash,
            salt,
            iterations: MIN_ITERATIONS,
            stored_key: key("stored"),
            server_key: key("server"),
        }
    }

    /// Reads Kafka's form of one, without the mechanism:
    /// `[salt=…,stored_key=…,server_key=…,iterations=4096]`, binary values in base64.
    ///
    /// # Errors
    /// A part is missing, unknown, of the wrong length, or there are fewer than [`MIN_ITERATIONS`].
    pub fn parse(hash: Hash, text: &str) -> Result<Self, BadCredential> {
        let inner = text
            .trim()
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .ok_or(BadCredential("it must stand in brackets"))?;
        let (mut salt, mut stored, mut server, mut iterations) = (None, None, None, None);
        for part in inner.split(',') {
            let (key, value) = part
                .trim()
                .split_once('=')
                .ok_or(BadCredential("a part is not `key=value`"))?;
            let place = match key {
                "salt" => &mut salt,
                "stored_key" => &mut stored,
                "server_key" => &mut server,
                "iterations" => {
                    iterations = value.parse().ok();
                    continue;
                }
                _ => {
                    return Err(BadCredential(
                        "a part is none of salt, stored_key, server_key, iterations",
                    ));
                }
            };
            let bytes = BASE64_STANDARD.decode(value);
            *place = Some(bytes.map_err(|_| BadCredential("a part is not base64"))?);
        }
        let key = |bytes: Option<Vec<u8>>| {
            bytes
                .filter(|bytes| bytes.len() == hash.len())
                .ok_or(BadCredential(
                    "stored_key or server_key is missing or not as long as the hash",
                ))
        };
        Ok(Self {
            hash,
            salt: salt
                .filter(|salt| !salt.is_empty() && salt.len() <= MAX_SALT_BYTES)
                .ok_or(BadCredential(
                    "salt is missing, empty or longer than 1024 bytes",
                ))?,
            iterations: iterations
                .filter(|found| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(found))
                .ok_or(BadCredential(
                    "iterations is missing or outside 4096..=1000000",
                ))?,
            stored_key: key(stored)?,
            server_key: key(server)?,
        })
    }
}

/// A nonce: printable, without commas.
fn nonce() -> Result<String, Fault> {
    Ok(BASE64_STANDARD.encode(random::<24>()?))
}

/// The value of an attribute `key=value`.
fn attribute<'a>(part: Option<&'a str>, key: &str, what: &'static str) -> Result<&'a str, Fault> {
    part.and_then(|part| part.strip_prefix(key))
        .and_then(|rest| rest.strip_prefix('='))
        .ok_or(Fault::Malformed(what))
}

fn text<'a>(message: &'a [u8], what: &'static str) -> Result<&'a str, Fault> {
    std::str::from_utf8(message).map_err(|_| Fault::Malformed(what))
}

fn xor(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right).map(|(a, b)| a ^ b).collect()
}
