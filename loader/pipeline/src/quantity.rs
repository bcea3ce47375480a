//! Quantities with a unit, as text in job files: `"30d"`, `"15m"`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

const UNITS: [(&str, i64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// A length of event time: whole milliseconds, never negative. Text form `30d`, `36h`, `15m`,
/// `10s`, `250ms`; a day has 24 hours, since a window of event time ignores the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period {
    ms: i64,
}

/// A text that is not a [`Period`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not a period: a whole number and one of d, h, m, s, ms, such as \"30d\"")]
pub struct InvalidPeriod {
    text: String,
}

impl Period {
    /// A period of `days` days of 24 hours.
    #[must_use]
    pub const fn days(days: u16) -> Self {
        Self {
            ms: days as i64 * 86_400_000,
        }
    }

    /// A period in milliseconds; a negative number becomes zero.
    #[must_use]
    pub const fn from_ms(ms: i64) -> Self {
        Self {
            ms: if ms < 0 { 0 } else { ms },
        }
    }

    /// The length in milliseconds.
    #[must_use]
    pub const fn as_ms(self) -> i64 {
        self.ms
    }
}

impl FromStr for Period {
    type Err = InvalidPeriod;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidPeriod {
            text: text.to_owned(),
        };
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at_checked(digits).ok_or_else(invalid)?;
        let number: i64 = number.parse().map_err(|_| invalid())?;
        let unit = unit.trim_start();
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(invalid)?;
        let ms = number.checked_mul(*factor).ok_or_else(invalid)?;
        Ok(Self { ms })
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = UNITS
            .iter()
            .find(|(_, factor)| self.ms >= *factor && self.ms % factor == 0)
            .unwrap_or(&("s", 1_000));
        write!(f, "{}{unit}", self.ms / factor)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A size in bytes of memory.
pub(crate) fn in_bytes(size: bytesize::ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

/// Serde adaptor for sizes: read as text (`"256MiB"`) or as a number of bytes, written as a number, since
/// the text that `ByteSize` writes is rounded and a stored plan must say exactly what was planned.
pub(crate) mod byte_size {
    use bytesize::ByteSize;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(size: &ByteSize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(size.as_u64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ByteSize, D::Error> {
        ByteSize::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_text_round_trips_in_the_largest_whole_unit() {
        for (text, ms, shown) in [
            ("30d", 2_592_000_000, "30d"),
            ("36h", 129_600_000, "36h"),
            ("48h", 172_800_000, "2d"),
            ("90 s", 90_000, "90s"),
            ("250ms", 250, "250ms"),
            ("0s", 0, "0s"),
        ] {
            let period: Period = text.parse().unwrap();
            assert_eq!(period.as_ms(), ms);
            assert_eq!(period.to_string(), shown);
            assert_eq!(shown.parse::<Period>().unwrap(), period);
        }
    }

    #[test]
    fn period_refuses_what_has_no_unit_or_overflows() {
        for text in ["", "30", "d", "-1d", "1.5h", "1w", "99999999999999999d"] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
    }
}
