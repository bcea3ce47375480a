//! PLAIN (RFC 4616): one message, `[authorization id] NUL name NUL password`.

use std::fmt;

use ring::hmac;
use zeroize::Zeroizing;

use super::{Fault, Secret, random};

const WHAT: &str = "PLAIN message";

/// The client's message. Overwritten when it goes.
pub fn encode(username: &str, password: &Secret) -> Zeroizing<Vec<u8>> {
    let parts = ["", username, password.expose()];
    Zeroizing::new(parts.join("\0").into_bytes())
}

/// Name and password of a client's message.
///
/// # Errors
/// It is not UTF-8, has not three parts, or one that may not be empty is; or it asks to act for another user.
pub fn decode(message: &[u8]) -> Result<(&str, &str), Fault> {
    let text = std::str::from_utf8(message).map_err(|_| Fault::Malformed(WHAT))?;
    let mut parts = text.split('\0');
    let (Some(identity), Some(username), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Fault::Malformed(WHAT));
    };
    if username.is_empty() || password.is_empty() {
        return Err(Fault::Malformed(WHAT));
    }
    if !identity.is_empty() && identity != username {
        return Err(Fault::OtherIdentity);
    }
    Ok((username, password))
}

/// What a server keeps about one user's password: enough to compare, and not the password.
#[derive(Clone)]
pub struct Stored {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").finish_non_exhaustive()
    }
}

impl Stored {
    /// From a password, under a fresh key.
    ///
    /// # Errors
    /// [`Fault::NoRandom`].
    pub fn new(password: &str) -> Result<Self, Fault> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &random::<32>()?);
        let tag = hmac::sign(&key, password.as_bytes());
        Ok(Self { key, tag })
    }

    /// Whether this is the password. Takes as long for a wrong one as for the right one.
    pub fn matches(&self, password: &str) -> bool {
        hmac::verify(&self.key, password.as_bytes(), self.tag.as_ref()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_password_come_back() {
        let message = encode("alice", &Secret::new("päss=word,"));
        assert_eq!(decode(&message), Ok(("alice", "päss=word,")));
        assert_eq!(decode(b"alice\0alice\0x"), Ok(("alice", "x")));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            &b""[..],
            b"\0alice",
            b"\0\0password",
            b"\0alice\0",
            b"\0alice\0pass\0word",
            b"\0ali\xffce\0pass",
        ] {
            assert_eq!(decode(bad), Err(Fault::Malformed(WHAT)), "{bad:?}");
        }
        assert_eq!(decode(b"root\0alice\0pass"), Err(Fault::OtherIdentity));
    }

    #[test]
    fn only_the_password_matches() {
        let stored = Stored::new("hunter2").unwrap();
        assert!(stored.matches("hunter2"));
        for wrong in ["", "hunter", "hunter22", "Hunter2"] {
            assert!(!stored.matches(wrong), "{wrong}");
        }
    }
}
