//! Dates and RFC 3339 times from their text, exact and independent of any time zone database.

/// An instant with all digits its text had, up to nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instant {
    /// Whole seconds since 1970, UTC, rounded down.
    pub(crate) seconds: i64,
    /// 0 to 999,999,999.
    pub(crate) nanos: u32,
    /// Whether digits behind the ninth were not all zero.
    pub(crate) finer: bool,
}

/// Days since 1970-01-01 of `YYYY-MM-DD`; None if it is no date of the Gregorian calendar.
pub(crate) fn parse_date(text: &str) -> Option<i32> {
    let (days, rest) = leading_date(text.as_bytes())?;
    rest.is_empty().then_some(days)
}

/// RFC 3339 section 5.6: `2026-11-30T13:05:09.25+02:00`; a space may stand for the `T`. The zone
/// is required; a leap second (`:60`) is refused, since nothing here could hold it.
pub(crate) fn parse_rfc3339(text: &str) -> Option<Instant> {
    let (days, rest) = leading_date(text.as_bytes())?;
    let rest = match rest {
        [b'T' | b't' | b' ', rest @ ..] => rest,
        _ => return None,
    };
    let [h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = rest else {
        return None;
    };
    let hour = two_digits(*h1, *h2, 23)?;
    let minute = two_digits(*m1, *m2, 59)?;
    let second = two_digits(*s1, *s2, 59)?;
    let (nanos, finer, rest) = fraction(rest)?;
    let offset = match rest {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let seconds = two_digits(*h1, *h2, 23)? * 3_600 + two_digits(*m1, *m2, 59)? * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    let seconds = i64::from(days) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Some(Instant {
        seconds,
        nanos,
        finer,
    })
}

fn leading_date(text: &[u8]) -> Option<(i32, &[u8])> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, rest @ ..] = text else {
        return None;
    };
    let year = two_digits(*y1, *y2, 99)? * 100 + two_digits(*y3, *y4, 99)?;
    let month = two_digits(*m1, *m2, 12)?;
    let day = two_digits(*d1, *d2, 31)?;
    if month == 0 || day == 0 || day > days_in_month(year, month) {
        return None;
    }
    let days = i32::try_from(days_before(year, month) + day - 1).ok()?;
    Some((days, rest))
}

fn two_digits(tens: u8, ones: u8, max: i64) -> Option<i64> {
    if !tens.is_ascii_digit() || !ones.is_ascii_digit() {
        return None;
    }
    let value = i64::from(tens - b'0') * 10 + i64::from(ones - b'0');
    (value <= max).then_some(value)
}

fn fraction(text: &[u8]) -> Option<(u32, bool, &[u8])> {
    let [b'.', digits @ ..] = text else {
        return Some((0, false, text));
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (digits, rest) = digits.split_at_checked(count)?;
    if digits.is_empty() {
        return None;
    }
    let nanos = digits.iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanos = nanos.fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    let finer = digits.iter().skip(9).any(|digit| *digit != b'0');
    Some((nanos, finer, rest))
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to the first of the month, for years 0 to 9999.
fn days_before(year: i64, month: i64) -> i64 {
    let past = year - 1;
    let leap_days = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    // 719,162 days lie between 0001-01-01 and 1970-01-01.
    let year_start = past * 365 + leap_days - 719_162;
    year_start
        + (1..month)
            .map(|earlier| days_in_month(year, earlier))
            .sum::<i64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_ten_thousand_years_agrees_with_jiff() {
        let mut date = jiff::civil::date(0, 1, 1);
        let epoch = jiff::civil::date(1970, 1, 1);
        let mut expected = epoch.until(date).unwrap().get_days();
        loop {
            let (y, m, d) = (date.year(), date.month(), date.day());
            let text = format!("{y:04}-{m:02}-{d:02}");
            assert_eq!(parse_date(&text), Some(expected), "{text}");
            if date.year() == 9999 && date.month() == 12 && date.day() == 31 {
                break;
            }
            date = date.tomorrow().unwrap();
            expected += 1;
        }
    }

    #[test]
    fn wrong_dates_are_refused() {
        for text in [
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-01-00",
            "2026-1-1",
            "26-01-01",
            "",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
        assert!(parse_date("2024-02-29").is_some());
    }

    #[test]
    fn rfc3339_keeps_offset_and_fraction() {
        let instant = parse_rfc3339("2026-11-30T13:05:09.25+02:00").unwrap();
        assert_eq!(
            (instant.seconds, instant.nanos),
            (1_796_036_709, 250_000_000)
        );
        let before = parse_rfc3339("1969-12-31 23:59:59.9z").unwrap();
        assert_eq!(
            (before.seconds, before.nanos, before.finer),
            (-1, 900_000_000, false)
        );
        assert!(
            parse_rfc3339("2026-11-30T13:05:09.0000000001Z")
                .unwrap()
                .finer
        );
        for text in [
            "2026-11-30T13:05:09",
            "2026-11-30T24:00:00Z",
            "2026-11-30T13:05:60Z",
            "2026-11-30T13:05Z",
            "2026-11-30T13:05:09.Z",
            "2026-11-30T13:05:09+0200",
            "2026-11-30T13:05:09Z ",
            "abc",
            "",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
