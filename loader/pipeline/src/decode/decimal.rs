//! Exact decimals from their text.

/// Why a text is no `decimal(p,s)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecimalFault {
    /// Not `[+-] digits [. digits] [e [+-] digits]`.
    NotANumber,
    /// More digits in front of the point than the type has.
    OutOfRange,
    /// Digits behind the point that the scale would cut off, other than zeros.
    Inexact,
}

/// Reads `text` as a decimal of at most 38 digits and returns it times ten to the `scale`.
pub(crate) fn parse_decimal(text: &str, precision: u8, scale: u8) -> Result<i128, DecimalFault> {
    let (negative, unsigned) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let exponent_at = unsigned.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (digits, exponent) = match exponent_at.and_then(|at| unsigned.split_at_checked(at)) {
        Some((digits, exponent)) => (
            digits,
            parse_exponent(exponent.get(1..).unwrap_or_default())?,
        ),
        None => (unsigned, 0),
    };
    let (mantissa, mantissa_exponent) = parse_mantissa(digits)?;
    if mantissa == 0 {
        return Ok(0);
    }
    let shift = mantissa_exponent
        .saturating_add(exponent)
        .saturating_add(i64::from(scale));
    // The mantissa ends in another digit than zero, so a negative shift would cut it off.
    let shift = u32::try_from(shift).map_err(|_| DecimalFault::Inexact)?;
    let limit = 10_i128.pow(u32::from(precision.min(38)));
    let value = 10_i128
        .checked_pow(shift)
        .and_then(|factor| mantissa.checked_mul(factor));
    match value {
        Some(value) if value < limit => Ok(if negative { -value } else { value }),
        Some(_) | None => Err(DecimalFault::OutOfRange),
    }
}

/// Digits and at most one point as `mantissa × 10^exponent`, the mantissa without zeros at its end.
fn parse_mantissa(digits: &[u8]) -> Result<(i128, i64), DecimalFault> {
    let mut mantissa: i128 = 0;
    let mut zeros: u32 = 0;
    let mut fraction_digits: i64 = 0;
    let (mut point, mut any_before, mut any_after) = (false, false, false);
    for byte in digits {
        match byte {
            b'.' if !point => {
                point = true;
                continue;
            }
            b'0' => zeros = zeros.saturating_add(1),
            b'1'..=b'9' => {
                if mantissa == 0 {
                    zeros = 0;
                }
                let factor = zeros
                    .checked_add(1)
                    .and_then(|places| 10_i128.checked_pow(places));
                let shifted = factor.and_then(|factor| mantissa.checked_mul(factor));
                let added = shifted.and_then(|m| m.checked_add(i128::from(byte - b'0')));
                mantissa = added.ok_or(DecimalFault::OutOfRange)?;
                zeros = 0;
            }
            _ => return Err(DecimalFault::NotANumber),
        }
        if point {
            any_after = true;
            fraction_digits += 1;
        } else {
            any_before = true;
        }
    }
    if !any_before || point != any_after {
        return Err(DecimalFault::NotANumber);
    }
    Ok((mantissa, i64::from(zeros) - fraction_digits))
}

fn parse_exponent(text: &[u8]) -> Result<i64, DecimalFault> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(DecimalFault::NotANumber);
    }
    let value = digits.iter().fold(0_i64, |value, digit| {
        value
            .saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'))
            .min(i64::MAX / 4)
    });
    Ok(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_or_refused() {
        for (text, precision, scale, expected) in [
            ("1.10", 5, 1, Ok(11)),
            ("1.15", 5, 1, Err(DecimalFault::Inexact)),
            ("-12.345", 5, 3, Ok(-12_345)),
            ("123.456", 5, 3, Err(DecimalFault::OutOfRange)),
            ("1.5e3", 5, 1, Ok(15_000)),
            ("15000e-4", 3, 1, Ok(15)),
            ("1e-400", 38, 10, Err(DecimalFault::Inexact)),
            ("1e400", 38, 10, Err(DecimalFault::OutOfRange)),
            ("0e999999999999999999999", 3, 0, Ok(0)),
            ("-0", 3, 1, Ok(0)),
            ("007.50", 3, 1, Ok(75)),
            ("+4", 1, 0, Ok(4)),
            ("10", 1, 0, Err(DecimalFault::OutOfRange)),
            ("1.", 3, 1, Err(DecimalFault::NotANumber)),
            (".5", 3, 1, Err(DecimalFault::NotANumber)),
            ("1.2.3", 3, 1, Err(DecimalFault::NotANumber)),
            ("", 3, 1, Err(DecimalFault::NotANumber)),
            ("abc", 3, 1, Err(DecimalFault::NotANumber)),
            ("1e", 3, 1, Err(DecimalFault::NotANumber)),
            ("NaN", 3, 1, Err(DecimalFault::NotANumber)),
        ] {
            assert_eq!(parse_decimal(text, precision, scale), expected, "{text}");
        }
    }

    #[test]
    fn all_38_digits_are_kept() {
        let digits = "12345678901234567890123456789012345678";
        assert_eq!(parse_decimal(digits, 38, 0), Ok(digits.parse().unwrap()));
        let long_tail = format!("{digits}.{}", "0".repeat(100));
        assert_eq!(
            parse_decimal(&long_tail, 38, 0),
            Ok(digits.parse().unwrap())
        );
        assert_eq!(
            parse_decimal(&format!("{digits}9"), 38, 0),
            Err(DecimalFault::OutOfRange)
        );
    }
}
