//! Everybody's vocabulary: names and ids that are more than a number.
//!
//! Offsets are `i64`, partitions, leader epochs and node ids `i32`, under names that say so.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use bytestring::ByteString;
use uuid::Uuid;

/// A topic's name, as Kafka allows it: 1 to 249 of `[a-zA-Z0-9._-]`, and neither `.` nor `..`.
///
/// A clone shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(ByteString);

/// A text that is no topic name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a topic name: use 1 to {} of a-z, A-Z, 0-9, '.', '_' and '-', and neither \".\" nor \"..\"",
    TopicName::MAX_LEN
)]
pub struct InvalidTopicName {
    /// The text, cut to 300 characters.
    pub name: String,
}

impl TopicName {
    /// Longest name, in bytes. Kafka's limit leaves room for `-<partition>` in a 255-byte file name.
    pub const MAX_LEN: usize = 249;

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidTopicName`] when Kafka would refuse it.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidTopicName> {
        Self::try_from(ByteString::from(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as messages hold it; shares the bytes.
    pub fn to_byte_string(&self) -> ByteString {
        self.0.clone()
    }

    fn is_valid(name: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        (1..=Self::MAX_LEN).contains(&name.len())
            && name != "."
            && name != ".."
            && name.bytes().all(allowed)
    }
}

impl TryFrom<ByteString> for TopicName {
    type Error = InvalidTopicName;

    fn try_from(name: ByteString) -> Result<Self, InvalidTopicName> {
        if Self::is_valid(&name) {
            Ok(Self(name))
        } else {
            Err(InvalidTopicName {
                name: name.chars().take(300).collect(),
            })
        }
    }
}

impl FromStr for TopicName {
    type Err = InvalidTopicName;

    fn from_str(name: &str) -> Result<Self, InvalidTopicName> {
        Self::new(name)
    }
}

impl From<TopicName> for ByteString {
    fn from(name: TopicName) -> Self {
        name.0
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A topic's id: it changes when a topic is deleted and made again under the same name.
///
/// Printed and parsed as Kafka does: the url-safe base64 of its 16 bytes without padding, 22 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TopicId(pub Uuid);

/// A text that is no topic id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a topic id: it has 22 characters of url-safe base64")]
pub struct InvalidTopicId {
    /// The text, cut to 300 characters.
    pub text: String,
}

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl TopicId {
    /// The id that stands for "none" on the wire.
    pub const ZERO: Self = Self(Uuid::nil());

    /// Whether this is [`Self::ZERO`].
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    fn parse(text: &str) -> Option<Self> {
        if text.len() != 22 {
            return None;
        }
        let mut value = 0u128;
        for (index, byte) in text.bytes().enumerate() {
            let digit = BASE64_URL.iter().position(|&candidate| candidate == byte)? as u128;
            if index < 21 {
                value = (value << 6) | digit;
            } else {
                // 22 digits carry 132 bits: the last four must be zero.
                if digit & 0xf != 0 {
                    return None;
                }
                value = (value << 2) | (digit >> 4);
            }
        }
        Some(Self(Uuid::from_u128(value)))
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.as_u128();
        let mut text = String::with_capacity(22);
        for index in 0u32..22 {
            let digit = if index < 21 {
                value >> (122 - 6 * index)
            } else {
                value << 4
            } & 0x3f;
            let byte = BASE64_URL.get(digit as usize).copied().unwrap_or(b'?');
            text.push(char::from(byte));
        }
        f.pad(&text)
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({self})")
    }
}

impl FromStr for TopicId {
    type Err = InvalidTopicId;

    fn from_str(text: &str) -> Result<Self, InvalidTopicId> {
        Self::parse(text).ok_or_else(|| InvalidTopicId {
            text: text.chars().take(300).collect(),
        })
    }
}

impl From<Uuid> for TopicId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl From<TopicId> for Uuid {
    fn from(id: TopicId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_follow_kafkas_rule() {
        for good in ["a", "page_views", "A.b-C_9", "...", &"x".repeat(249)] {
            assert_eq!(TopicName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a b", "ü", "a/b", "a\0", &"x".repeat(250)] {
            let error = TopicName::new(bad).unwrap_err();
            assert_eq!(error.name, bad);
        }
    }

    #[test]
    fn topic_ids_print_as_kafka_prints_them() {
        // Kafka's Uuid(0, 1), its METADATA_TOPIC_ID.
        assert_eq!(
            TopicId(Uuid::from_u128(1)).to_string(),
            "AAAAAAAAAAAAAAAAAAAAAQ"
        );
        assert_eq!(TopicId::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(
            TopicId(Uuid::from_u128(u128::MAX)).to_string(),
            "_____________________w"
        );
        for value in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let id = TopicId(Uuid::from_u128(value));
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn texts_that_are_no_topic_id_are_refused() {
        for bad in [
            "",
            "AAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAAB",
            "AAAAAAAAAA+AAAAAAAAAAA",
        ] {
            assert!(bad.parse::<TopicId>().is_err(), "{bad}");
        }
    }
}
