//! A password that does not show itself.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

/// A password: `Debug` and serialization show `***`, and its memory is overwritten when it goes.
///
/// It is read from text only. A bare number is refused, since what reads it would have dropped its leading
/// zeros; the refusal does not repeat it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

/// What is shown instead.
const HIDDEN: &str = "***";

impl Secret {
    /// Takes a password.
    pub fn new(password: impl Into<String>) -> Self {
        Self(Zeroizing::new(password.into()))
    }

    /// The password itself. Not for logs, errors or files.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;

        impl Text {
            fn refuse<E: de::Error>() -> E {
                E::custom("a secret must be text: put it in quotes, in the environment as '\"…\"'")
            }
        }

        impl de::Visitor<'_> for Text {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a secret as text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
                Ok(Secret::new(text))
            }

            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Secret, E> {
                Err(Self::refuse())
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
                Err(Self::refuse())
            }

            fn visit_i128<E: de::Error>(self, _: i128) -> Result<Secret, E> {
                Err(Self::refuse())
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
                Err(Self::refuse())
            }

            fn visit_u128<E: de::Error>(self, _: u128) -> Result<Secret, E> {
                Err(Self::refuse())
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
                Err(Self::refuse())
            }

            fn visit_char<E: de::Error>(self, one: char) -> Result<Secret, E> {
                Ok(Secret::new(one))
            }
        }

        from.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer, U64Deserializer};

    use super::*;

    #[test]
    fn a_secret_never_shows_itself() {
        let text: StrDeserializer<'_, Error> = "hunter2".into_deserializer();
        let secret = Secret::deserialize(text).unwrap();
        assert_eq!(secret.expose(), "hunter2");
        assert_eq!(format!("{secret:?} {secret:#?}"), "*** ***");
        let number: U64Deserializer<Error> = 1_234_567_u64.into_deserializer();
        let error = Secret::deserialize(number).unwrap_err().to_string();
        assert!(
            error.contains("quotes") && !error.contains("1234567"),
            "{error}"
        );
    }
}
