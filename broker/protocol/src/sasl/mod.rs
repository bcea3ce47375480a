//! SASL as Kafka uses it: the names of the mechanisms, and what is inside the tokens of
//! [`SaslAuthenticate`](crate::messages::sasl_authenticate).
//!
//! Both sides are here, without I/O, so that client and broker cannot disagree. Names and passwords are UTF-8
//! as they come: Kafka applies no `SASLprep`, and neither do we.

pub mod plain;
pub mod scram;
mod secret;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use secret::Secret;

/// A mechanism that client and broker know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mechanism {
    /// Name and password as they are (RFC 4616).
    #[serde(rename = "PLAIN")]
    Plain,
    /// Salted challenge and response (RFC 5802) with SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Salted challenge and response with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl Mechanism {
    /// All of them, the strongest last.
    pub const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }

    /// The hash of a SCRAM mechanism.
    pub const fn scram(self) -> Option<scram::Hash> {
        match self {
            Self::Plain => None,
            Self::ScramSha256 => Some(scram::Hash::Sha256),
            Self::ScramSha512 => Some(scram::Hash::Sha512),
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no mechanism's here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("none of PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512")]
pub struct UnknownMechanism;

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, UnknownMechanism> {
        let known = Self::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or(UnknownMechanism)
    }
}

/// Why a token is refused. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Not a token of this step.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// The client wants to act for somebody else.
    #[error("authorization as another user is not supported")]
    OtherIdentity,
    /// The client wants the TLS channel to be part of the proof.
    #[error("channel binding is not supported")]
    ChannelBinding,
    /// The other side continues another exchange.
    #[error("the nonce is not that of this exchange")]
    Nonce,
    /// So few iterations protect no password; so many keep a processor busy for long.
    #[error(
        "{found} iterations are outside {}..={}",
        scram::MIN_ITERATIONS,
        scram::MAX_ITERATIONS
    )]
    Iterations {
        /// As asked for by the server.
        found: u32,
    },
    /// The client does not know the password.
    #[error("the proof of the password is wrong")]
    Proof,
    /// The server does not know the password: it is not the one it says it is.
    #[error("the server does not prove that it knows the password")]
    ServerProof,
    /// The server ends the exchange.
    #[error("the server says: {0}")]
    Server(String),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    NoRandom,
}

/// Fresh random bytes.
///
/// # Errors
/// [`Fault::NoRandom`].
pub fn random<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| Fault::NoRandom)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanisms_have_kafkas_names() {
        for mechanism in Mechanism::ALL {
            assert_eq!(mechanism.name().parse(), Ok(mechanism));
        }
        assert_eq!("GSSAPI".parse::<Mechanism>(), Err(UnknownMechanism));
        assert_eq!("plain".parse::<Mechanism>(), Err(UnknownMechanism));
    }
}
