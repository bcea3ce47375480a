//! A strict JSON reader over one record (RFC 8259): grammar, strings, numbers, nothing of schemas.

use std::str;

/// How deep arrays and objects may be nested, the record itself counted.
pub(crate) const MAX_DEPTH: usize = 128;

/// Why a value cannot be read; turned into words only when a record is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// No bytes at all.
    Empty,
    /// Only white space.
    Blank,
    /// The record is another kind of value.
    NotAnObject,
    /// Not UTF-8.
    Utf8,
    /// The record ends inside a value.
    Truncated,
    /// Something follows the record.
    Trailing,
    /// The grammar wants something else.
    Expected(&'static str),
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// A key appears twice in one object.
    DuplicateKey,
    /// null for a required column.
    Null,
    /// A required column has no field.
    Missing,
    /// Another type than the column's.
    NotA(&'static str),
    /// The right type, but beyond what the column holds.
    OutOfRange(&'static str),
    /// A value that the column could only hold rounded.
    Inexact(&'static str),
    /// More bytes than one Arrow array may hold.
    TooLarge,
}

/// A [`FaultKind`] and the byte of the record where it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) kind: FaultKind,
}

/// The text of a number, its grammar checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberText<'a> {
    pub(crate) text: &'a str,
    /// Neither fraction nor exponent.
    pub(crate) integer: bool,
}

/// Position in one record. Every byte before `at` is read and found good.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Checks the record's UTF-8, so that all that follows may copy strings as they are.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, Fault> {
        match simdutf8::basic::from_utf8(bytes) {
            Ok(text) => Ok(Self { text, bytes, at: 0 }),
            Err(_) => Err(Fault {
                at: str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len),
                kind: FaultKind::Utf8,
            }),
        }
    }

    #[inline]
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    /// The text from `start` to here.
    pub(crate) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// A fault at this position; at the end of the record it is a truncation.
    #[cold]
    pub(crate) fn fault(&self, kind: FaultKind) -> Fault {
        let ended = self.at >= self.bytes.len();
        let cut = ended && matches!(kind, FaultKind::Expected(_));
        let kind = if cut { FaultKind::Truncated } else { kind };
        Fault { at: self.at, kind }
    }

    #[inline]
    pub(crate) fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Takes `byte` if it is next.
    #[inline]
    pub(crate) fn accept(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Takes `token` if it is next.
    #[inline]
    pub(crate) fn accept_all(&mut self, token: &[u8]) -> bool {
        let found = self
            .bytes
            .get(self.at..)
            .is_some_and(|rest| rest.starts_with(token));
        if found {
            self.at += token.len();
        }
        found
    }

    #[inline]
    pub(crate) fn expect(&mut self, byte: u8, name: &'static str) -> Result<(), Fault> {
        if self.accept(byte) {
            Ok(())
        } else {
            Err(self.fault(FaultKind::Expected(name)))
        }
    }

    /// After a member or an element: true behind a comma, false behind `close`.
    #[inline]
    pub(crate) fn more(&mut self, close: u8, name: &'static str) -> Result<bool, Fault> {
        self.skip_space();
        if self.accept(b',') {
            self.skip_space();
            return Ok(true);
        }
        self.expect(close, name).map(|()| false)
    }

    /// Reads a string; its content if it has no escapes, otherwise None and the content in
    /// `unescaped` (cleared first).
    #[inline]
    pub(crate) fn string(&mut self, unescaped: &mut String) -> Result<Option<&'a str>, Fault> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        self.at = plain_end(self.bytes, self.at);
        if self.peek() == Some(b'"') {
            let text = self.since(start);
            self.at += 1;
            return Ok(Some(text));
        }
        unescaped.clear();
        unescaped.push_str(self.since(start));
        self.escaped_rest(unescaped)?;
        Ok(None)
    }

    #[cold]
    fn escaped_rest(&mut self, out: &mut String) -> Result<(), Fault> {
        loop {
            let start = self.at;
            self.at = plain_end(self.bytes, self.at);
            out.push_str(self.since(start));
            if self.accept(b'"') {
                return Ok(());
            }
            if self.peek() != Some(b'\\') {
                return Err(self.fault(FaultKind::Expected("no control character in a string")));
            }
            let escape_at = self.at;
            self.at += 1;
            let Some(letter) = self.peek() else {
                return Err(self.fault(FaultKind::Truncated));
            };
            self.at += 1;
            let plain = match letter {
                b'"' => '"',
                b'\\' => '\\',
                b'/' => '/',
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'n' => '\n',
                b'r' => '\r',
                b't' => '\t',
                b'u' => self.unicode_escape(escape_at)?,
                _ => {
                    self.at = escape_at;
                    return Err(self.fault(FaultKind::Expected("a known escape")));
                }
            };
            out.push(plain);
        }
    }

    /// Behind `\u`: four digits, and a second escape where the first is a high surrogate.
    fn unicode_escape(&mut self, escape_at: usize) -> Result<char, Fault> {
        const LONE: FaultKind = FaultKind::Expected("a pair of surrogates");
        let first = self.four_hex_digits()?;
        let code = if (0xD800..0xDC00).contains(&first) {
            if !self.accept_all(b"\\u") {
                return Err(self.fault(LONE));
            }
            let second = self.four_hex_digits()?;
            if !(0xDC00..0xE000).contains(&second) {
                return Err(Fault {
                    at: escape_at,
                    kind: LONE,
                });
            }
            0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00)
        } else {
            first
        };
        char::from_u32(code).ok_or(Fault {
            at: escape_at,
            kind: LONE,
        })
    }

    fn four_hex_digits(&mut self) -> Result<u32, Fault> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.fault(FaultKind::Expected("four hex digits")));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    /// Reads an integer exactly. A fraction, an exponent (also of a whole number) or a value beyond
    /// 64 bits is a fault at the number's start.
    #[inline]
    pub(crate) fn integer(&mut self, wanted: &'static str) -> Result<i64, Fault> {
        let start = self.at;
        let negative = self.accept(b'-');
        let digits_at = self.at;
        let mut value: u64 = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        let digits = self.at - digits_at;
        let leading_zero = digits > 1 && self.bytes.get(digits_at) == Some(&b'0');
        if leading_zero {
            let kind = FaultKind::Expected("no zero in front of digits");
            return Err(Fault {
                at: digits_at,
                kind,
            });
        }
        if digits == 0 || matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return Err(self.mismatch(start, wanted));
        }
        // 18 digits cannot have wrapped; more are rare, and read again with care.
        match i64::try_from(value) {
            Ok(value) if digits <= 18 => Ok(if negative { -value } else { value }),
            Ok(_) | Err(_) => {
                let exact = self.since(start).parse::<i64>();
                exact.map_err(|_| Fault {
                    at: start,
                    kind: FaultKind::OutOfRange(wanted),
                })
            }
        }
    }

    /// The fault of the value at `start`, which is not the `wanted` type: broken JSON is told from
    /// a sound value of another type, so that the reason is the right one.
    #[cold]
    pub(crate) fn mismatch(&mut self, start: usize, wanted: &'static str) -> Fault {
        self.at = start;
        match self.skip_value(0) {
            Ok(()) => Fault {
                at: start,
                kind: FaultKind::NotA(wanted),
            },
            Err(fault) => fault,
        }
    }

    /// Reads a number's text and checks its grammar.
    pub(crate) fn number(&mut self) -> Result<NumberText<'a>, Fault> {
        const DIGIT: FaultKind = FaultKind::Expected("a digit");
        let start = self.at;
        self.accept(b'-');
        if !self.accept(b'0') && self.digits() == 0 {
            return Err(self.fault(DIGIT));
        }
        let mut integer = true;
        if self.accept(b'.') {
            integer = false;
            if self.digits() == 0 {
                return Err(self.fault(DIGIT));
            }
        }
        if let Some(b'e' | b'E') = self.peek() {
            integer = false;
            self.at += 1;
            if !self.accept(b'-') {
                self.accept(b'+');
            }
            if self.digits() == 0 {
                return Err(self.fault(DIGIT));
            }
        }
        Ok(NumberText {
            text: self.since(start),
            integer,
        })
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        self.at - start
    }

    /// Reads any one value and checks its grammar, strings and depth included. `depth` is that of
    /// the value around it.
    pub(crate) fn skip_value(&mut self, depth: usize) -> Result<(), Fault> {
        match self.peek() {
            Some(b'"') => self.skip_string(),
            Some(b'{') => {
                self.enter(depth)?;
                self.skip_space();
                if self.accept(b'}') {
                    return Ok(());
                }
                loop {
                    self.skip_string()?;
                    self.skip_space();
                    self.expect(b':', "`:`")?;
                    self.skip_space();
                    self.skip_value(depth + 1)?;
                    if !self.more(b'}', "`,` or `}`")? {
                        return Ok(());
                    }
                }
            }
            Some(b'[') => {
                self.enter(depth)?;
                self.skip_space();
                if self.accept(b']') {
                    return Ok(());
                }
                loop {
                    self.skip_value(depth + 1)?;
                    if !self.more(b']', "`,` or `]`")? {
                        return Ok(());
                    }
                }
            }
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            Some(_) | None => self.literal(),
        }
    }

    /// Takes the bracket that opens a value inside one of depth `depth`.
    pub(crate) fn enter(&mut self, depth: usize) -> Result<(), Fault> {
        if depth >= MAX_DEPTH {
            return Err(self.fault(FaultKind::TooDeep));
        }
        self.at += 1;
        Ok(())
    }

    fn skip_string(&mut self) -> Result<(), Fault> {
        // An empty String does not allocate, and grows only for strings with escapes.
        let mut unescaped = String::new();
        self.string(&mut unescaped).map(drop)
    }

    fn literal(&mut self) -> Result<(), Fault> {
        for word in ["true", "false", "null"] {
            if self.accept_all(word.as_bytes()) {
                return Ok(());
            }
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            if !rest.is_empty() && word.as_bytes().starts_with(rest) {
                return Err(self.fault(FaultKind::Truncated));
            }
        }
        Err(self.fault(FaultKind::Expected("a value")))
    }
}

/// First byte at or after `at` that is a quote, a backslash or a control character; the length
/// where there is none. Eight bytes at a time.
#[inline]
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*eight);
        let quote = zero(word ^ (ONES * 0x22));
        let backslash = zero(word ^ (ONES * 0x5C));
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let stops = quote | backslash | control;
        if stops != 0 {
            // Borrows make false positives only above the first true one.
            return at + usize::try_from(stops.trailing_zeros() / 8).unwrap_or(0);
        }
        at += 8;
    }
    while let Some(byte) = bytes.get(at) {
        if matches!(byte, b'"' | b'\\' | 0..=0x1F) {
            break;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_end_agrees_with_a_bytewise_search_for_every_byte_and_place() {
        for byte in 0..=u8::MAX {
            for place in 0..20 {
                let mut bytes = vec![b'a'; 20];
                bytes[place] = byte;
                bytes[19] = b'"';
                let expected = bytes
                    .iter()
                    .position(|b| matches!(b, b'"' | b'\\' | 0..=0x1F))
                    .unwrap();
                assert_eq!(plain_end(&bytes, 0), expected, "{byte} at {place}");
            }
        }
    }

    #[test]
    fn integer_reads_both_ends_of_64_bits_and_refuses_the_next() {
        let read = |text: &str| Cursor::new(text.as_bytes()).unwrap().integer("int64");
        assert_eq!(read("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(read("9223372036854775807"), Ok(i64::MAX));
        assert_eq!(read("-0"), Ok(0));
        for text in [
            "9223372036854775808",
            "-9223372036854775809",
            "100000000000000000000000",
        ] {
            let fault = read(text).unwrap_err();
            assert_eq!(fault.kind, FaultKind::OutOfRange("int64"), "{text}");
        }
        for text in ["1.0", "1e3", "\"5\"", "true", "[]"] {
            assert_eq!(
                read(text).unwrap_err().kind,
                FaultKind::NotA("int64"),
                "{text}"
            );
        }
        for text in ["-", "", "1.", "tru"] {
            assert_eq!(read(text).unwrap_err().kind, FaultKind::Truncated, "{text}");
        }
    }

    #[test]
    fn surrogates_must_come_in_pairs() {
        let read = |text: &str| {
            let mut out = String::new();
            let plain = Cursor::new(text.as_bytes()).unwrap().string(&mut out);
            plain.map(|plain| plain.map_or(out, str::to_owned))
        };
        assert_eq!(read(r#""\ud83d\ude00""#).unwrap(), "\u{1F600}");
        assert_eq!(read(r#""a\u0000\/\"b""#).unwrap(), "a\0/\"b");
        for text in [
            r#""\ud83d""#,
            r#""\ud83dx""#,
            r#""\ude00""#,
            r#""\ud83d\ud83d""#,
            r#""\u12""#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn leading_zeros_are_refused() {
        for text in ["01", "-01", "00"] {
            let mut cursor = Cursor::new(text.as_bytes()).unwrap();
            assert!(cursor.integer("int64").is_err(), "{text}");
        }
    }
}
