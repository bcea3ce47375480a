//! Integers, varints, strings and byte strings as Kafka's protocol guide lays them out, with the errors of
//! encoding and decoding.
//!
//! All integers are big-endian. Varints are little-endian groups of seven bits; the signed ones are zigzag
//! coded. A varint that does not fit its type is an error, where Java drops the excess bits.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use uuid::Uuid;

/// Bytes of the longest string.
pub const MAX_STRING: usize = 0x7fff;

/// Why bytes could not be read as the message they should be, and in which field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {message}{}{field}: {fault}", if field.is_empty() { "" } else { "." })]
pub struct DecodeError {
    message: &'static str,
    field: &'static str,
    fault: DecodeFault,
}

/// What was wrong with the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeFault {
    /// The message ends in the middle of a value.
    #[error("{needed} bytes needed, {remaining} remain")]
    Truncated {
        /// Bytes the value takes.
        needed: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// A length below zero that does not mean null.
    #[error("length {length} is negative")]
    NegativeLength {
        /// The length as read.
        length: i64,
    },
    /// An array that cannot fit into what is left, whatever its elements are.
    #[error("{count} elements announced, {remaining} bytes remain")]
    TooManyElements {
        /// Elements announced.
        count: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// Null in a version whose schema does not allow it.
    #[error("null is not allowed here")]
    Null,
    /// A string that is not UTF-8.
    #[error("string is not UTF-8")]
    Utf8,
    /// A string longer than Kafka's strings are. A compact length could say more.
    #[error("string of {length} bytes is longer than {max}", max = MAX_STRING)]
    LongString {
        /// Bytes announced.
        length: usize,
    },
    /// A varint longer than its type allows.
    #[error("varint does not fit {bits} bits")]
    Varint {
        /// Width of the type.
        bits: u32,
    },
    /// A tagged field whose value is shorter than its announced size.
    #[error("tagged field leaves {left} of its bytes unread")]
    TaggedFieldSize {
        /// Bytes that were not consumed.
        left: usize,
    },
    /// Bytes after the end of the message.
    #[error("{left} bytes follow the end of the message")]
    TrailingBytes {
        /// Bytes that were not consumed.
        left: usize,
    },
    /// A version this crate has no table for.
    #[error("version {version} is outside {min}..={max}")]
    UnsupportedVersion {
        /// The version asked for.
        version: i16,
        /// Lowest version known.
        min: i16,
        /// Highest version known.
        max: i16,
    },
    /// A request header with an API key this crate has no table for.
    #[error("api key {api_key} (version {api_version}) is unknown")]
    UnknownApi {
        /// The key as read.
        api_key: i16,
        /// The version as read.
        api_version: i16,
    },
}

impl From<DecodeFault> for DecodeError {
    fn from(fault: DecodeFault) -> Self {
        Self {
            message: "",
            field: "",
            fault,
        }
    }
}

impl DecodeError {
    /// Name of the innermost struct that could not be read, empty when unknown.
    pub fn message(&self) -> &'static str {
        self.message
    }

    /// Name of the field that could not be read, empty when it was the struct as a whole.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What was wrong.
    pub fn fault(&self) -> &DecodeFault {
        &self.fault
    }

    /// Names the place, unless an inner one has been named.
    #[cold]
    #[must_use]
    pub(crate) fn at(mut self, message: &'static str, field: &'static str) -> Self {
        if self.message.is_empty() {
            self.message = message;
            self.field = field;
        }
        self
    }
}

/// Why a message could not be written in a version, and because of which field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot encode {message}{}{field}: {fault}", if field.is_empty() { "" } else { "." })]
pub struct EncodeError {
    message: &'static str,
    field: &'static str,
    fault: EncodeFault,
}

/// What stands against writing the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeFault {
    /// The field has a value other than its default, and this version has no place for it.
    #[error("version {version} has no such field, and the value is not the default")]
    FieldNotInVersion {
        /// The version asked for.
        version: i16,
    },
    /// Null in a version whose schema does not allow it.
    #[error("null is not allowed in version {version}")]
    Null {
        /// The version asked for.
        version: i16,
    },
    /// A string, byte string or array longer than its length field can say.
    #[error("length {length} is above {max}")]
    TooLong {
        /// Length of the value.
        length: usize,
        /// Largest length the format allows.
        max: usize,
    },
    /// A version this crate has no table for.
    #[error("version {version} is outside {min}..={max}")]
    UnsupportedVersion {
        /// The version asked for.
        version: i16,
        /// Lowest version known.
        min: i16,
        /// Highest version known.
        max: i16,
    },
}

impl From<EncodeFault> for EncodeError {
    fn from(fault: EncodeFault) -> Self {
        Self {
            message: "",
            field: "",
            fault,
        }
    }
}

impl EncodeError {
    /// Name of the innermost struct that could not be written, empty when unknown.
    pub fn message(&self) -> &'static str {
        self.message
    }

    /// Name of the field that could not be written, empty when it was the struct as a whole.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What stands against it.
    pub fn fault(&self) -> &EncodeFault {
        &self.fault
    }

    /// Names the place, unless an inner one has been named.
    #[cold]
    #[must_use]
    pub(crate) fn at(mut self, message: &'static str, field: &'static str) -> Self {
        if self.message.is_empty() {
            self.message = message;
            self.field = field;
        }
        self
    }
}

fn truncated(needed: usize, buf: &Bytes) -> DecodeError {
    DecodeFault::Truncated {
        needed,
        remaining: buf.len(),
    }
    .into()
}

macro_rules! fixed_width {
    ($($name:ident $get:ident $ty:ty;)+) => {$(
        #[doc = concat!("Reads one big-endian `", stringify!($ty), "`.")]
        ///
        /// # Errors
        /// [`DecodeFault::Truncated`] when fewer bytes remain than the type has.
        #[inline]
        pub fn $name(buf: &mut Bytes) -> Result<$ty, DecodeError> {
            const WIDTH: usize = size_of::<$ty>();
            if buf.len() < WIDTH {
                return Err(truncated(WIDTH, buf));
            }
            Ok(buf.$get())
        }
    )+};
}

fixed_width! {
    get_i8 get_i8 i8;
    get_i16 get_i16 i16;
    get_i32 get_i32 i32;
    get_i64 get_i64 i64;
    get_u8 get_u8 u8;
    get_u16 get_u16 u16;
    get_f64 get_f64 f64;
}

/// Reads the 16 bytes of a uuid.
///
/// # Errors
/// [`DecodeFault::Truncated`] when fewer than 16 bytes remain.
#[inline]
pub fn get_uuid(buf: &mut Bytes) -> Result<Uuid, DecodeError> {
    if buf.len() < 16 {
        return Err(truncated(16, buf));
    }
    Ok(Uuid::from_u128(buf.get_u128()))
}

/// Takes the next `length` bytes as a slice of the input, without copying.
///
/// # Errors
/// [`DecodeFault::Truncated`] when fewer remain.
#[inline]
pub fn take(buf: &mut Bytes, length: usize) -> Result<Bytes, DecodeError> {
    if buf.len() < length {
        return Err(truncated(length, buf));
    }
    Ok(buf.split_to(length))
}

/// Reads an unsigned varint of at most 32 bits.
///
/// # Errors
/// [`DecodeFault::Truncated`], or [`DecodeFault::Varint`] when it is longer.
#[inline]
pub fn get_uvarint(buf: &mut Bytes) -> Result<u32, DecodeError> {
    let mut value = 0u32;
    for shift in [0u32, 7, 14, 21, 28] {
        let byte = u32::from(get_u8(buf)?);
        if shift == 28 && byte > 0x0f {
            break;
        }
        value |= (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(DecodeFault::Varint { bits: 32 }.into())
}

/// Writes an unsigned varint.
#[inline]
pub fn put_uvarint(out: &mut impl BufMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8((value & 0x7f) as u8);
}

/// Writes a zigzag varint, the form of record lengths and deltas.
#[inline]
#[expect(clippy::cast_sign_loss, reason = "zigzag moves the sign into bit 0")]
pub fn put_varint(out: &mut impl BufMut, value: i32) {
    put_uvarint(out, ((value << 1) ^ (value >> 31)) as u32);
}

/// Writes a zigzag varint of up to 64 bits, the form of timestamp deltas.
#[inline]
#[expect(clippy::cast_sign_loss, reason = "zigzag moves the sign into bit 0")]
pub fn put_varlong(out: &mut impl BufMut, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.put_u8((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8((rest & 0x7f) as u8);
}

/// Bytes that [`put_varint`] writes for `value`, 1 to 5.
#[inline]
#[expect(clippy::cast_sign_loss, reason = "zigzag moves the sign into bit 0")]
pub fn varint_len(value: i32) -> usize {
    let zigzag = ((value << 1) ^ (value >> 31)) as u32;
    varint_width(u64::from(zigzag))
}

/// Bytes that [`put_varlong`] writes for `value`, 1 to 10.
#[inline]
#[expect(clippy::cast_sign_loss, reason = "zigzag moves the sign into bit 0")]
pub fn varlong_len(value: i64) -> usize {
    varint_width(((value << 1) ^ (value >> 63)) as u64)
}

fn varint_width(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Which of the two layouts a length has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthForm {
    /// `int16`, −1 for null: strings before flexible versions.
    Int16,
    /// `int32`, −1 for null: byte strings and arrays before flexible versions.
    Int32,
    /// Unsigned varint of length + 1, 0 for null: everything in flexible versions.
    Compact,
}

/// Reads a length; `None` is null.
///
/// # Errors
/// A truncated or oversize varint, or a negative length other than −1.
#[inline]
pub fn get_length(buf: &mut Bytes, form: LengthForm) -> Result<Option<usize>, DecodeError> {
    let length = match form {
        LengthForm::Int16 => i64::from(get_i16(buf)?),
        LengthForm::Int32 => i64::from(get_i32(buf)?),
        LengthForm::Compact => i64::from(get_uvarint(buf)?) - 1,
    };
    if length == -1 {
        return Ok(None);
    }
    match usize::try_from(length) {
        Ok(length) => Ok(Some(length)),
        Err(_) => Err(DecodeFault::NegativeLength { length }.into()),
    }
}

/// Writes a length; `None` is null.
///
/// # Errors
/// [`EncodeFault::TooLong`] when the length field cannot hold it.
pub fn put_length(
    out: &mut BytesMut,
    length: Option<usize>,
    form: LengthForm,
) -> Result<(), EncodeError> {
    let too_long = |length, max: usize| EncodeError::from(EncodeFault::TooLong { length, max });
    match form {
        LengthForm::Int16 => out.put_i16(match length {
            None => -1,
            Some(n) => i16::try_from(n).map_err(|_| too_long(n, 0x7fff))?,
        }),
        LengthForm::Int32 => out.put_i32(match length {
            None => -1,
            Some(n) => i32::try_from(n).map_err(|_| too_long(n, 0x7fff_ffff))?,
        }),
        LengthForm::Compact => put_uvarint(
            out,
            match length {
                None => 0,
                // Java's lengths are int, in this form too.
                Some(n) => {
                    i32::try_from(n)
                        .map_err(|_| too_long(n, 0x7fff_ffff))?
                        .cast_unsigned()
                        + 1
                }
            },
        ),
    }
    Ok(())
}

/// Reads a byte string as a slice of the input; `None` is null.
///
/// # Errors
/// As [`get_length`] and [`take`].
#[inline]
pub fn get_bytes(buf: &mut Bytes, form: LengthForm) -> Result<Option<Bytes>, DecodeError> {
    get_length(buf, form)?
        .map(|length| take(buf, length))
        .transpose()
}

/// Reads a string as a slice of the input; `None` is null. As Kafka does, it takes no more than [`MAX_STRING`] bytes
/// in any form, so that what came in one version can be said in every other.
///
/// # Errors
/// As [`get_bytes`], [`DecodeFault::LongString`] and [`DecodeFault::Utf8`].
#[inline]
pub fn get_string(buf: &mut Bytes, form: LengthForm) -> Result<Option<ByteString>, DecodeError> {
    let Some(bytes) = get_bytes(buf, form)? else {
        return Ok(None);
    };
    if bytes.len() > MAX_STRING {
        let length = bytes.len();
        return Err(DecodeFault::LongString { length }.into());
    }
    ByteString::try_from(bytes)
        .map(Some)
        .map_err(|_| DecodeFault::Utf8.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(write: impl Fn(&mut BytesMut)) -> Bytes {
        let mut out = BytesMut::new();
        write(&mut out);
        out.freeze()
    }

    #[test]
    fn uvarints_have_the_bytes_of_the_protocol_guide() {
        let cases: [(u32, &[u8]); 6] = [
            (0, &[0]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (0x0fff_ffff, &[0xff, 0xff, 0xff, 0x7f]),
            (u32::MAX, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        ];
        for (value, bytes) in cases {
            let mut buf = encoded(|out| put_uvarint(out, value));
            assert_eq!(&buf[..], bytes);
            assert_eq!(get_uvarint(&mut buf), Ok(value));
            assert!(buf.is_empty());
        }
    }

    #[test]
    fn uvarint_beyond_32_bits_is_refused() {
        for bytes in [
            &[0xffu8, 0xff, 0xff, 0xff, 0x1f][..],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
        ] {
            let error = get_uvarint(&mut Bytes::copy_from_slice(bytes)).unwrap_err();
            assert_eq!(error.fault(), &DecodeFault::Varint { bits: 32 });
        }
    }

    #[test]
    fn widths_are_those_written() {
        for value in [0, 1, -1, 63, -64, 64, -65, 8191, 8192, i32::MAX, i32::MIN] {
            assert_eq!(
                encoded(|out| put_varint(out, value)).len(),
                varint_len(value),
                "{value}"
            );
        }
        for value in [0, -1, 63, 64, 1 << 34, i64::MAX, i64::MIN] {
            assert_eq!(
                encoded(|out| put_varlong(out, value)).len(),
                varlong_len(value),
                "{value}"
            );
        }
    }

    #[test]
    fn strings_beyond_the_length_field_are_refused() {
        let mut out = BytesMut::new();
        let error = put_length(&mut out, Some(40_000), LengthForm::Int16).unwrap_err();
        assert_eq!(
            error.fault(),
            &EncodeFault::TooLong {
                length: 40_000,
                max: 0x7fff
            }
        );
        put_length(&mut out, Some(40_000), LengthForm::Compact).unwrap();
        assert_eq!(
            get_length(&mut out.freeze(), LengthForm::Compact),
            Ok(Some(40_000))
        );
    }

    #[test]
    fn strings_are_no_longer_in_compact_form_than_in_the_other() {
        for (length, fits) in [(MAX_STRING, true), (MAX_STRING + 1, false)] {
            let mut input = encoded(|out| {
                put_length(out, Some(length), LengthForm::Compact).unwrap();
                out.put_bytes(b'x', length);
            });
            match get_string(&mut input, LengthForm::Compact) {
                Ok(text) => assert!(fits && text.unwrap().len() == length),
                Err(error) => {
                    assert!(!fits);
                    assert_eq!(error.fault(), &DecodeFault::LongString { length });
                }
            }
        }
    }

    #[test]
    fn negative_lengths_other_than_null_are_refused() {
        let mut buf = Bytes::from_static(&[0xff, 0xfe]);
        let error = get_length(&mut buf, LengthForm::Int16).unwrap_err();
        assert_eq!(error.fault(), &DecodeFault::NegativeLength { length: -2 });
        assert_eq!(
            get_length(&mut Bytes::from_static(&[0xff, 0xff]), LengthForm::Int16),
            Ok(None)
        );
    }

    #[test]
    fn strings_are_slices_of_the_input() {
        let input = Bytes::from(vec![0, 3, b'a', b'b', b'c', b'!']);
        let mut buf = input.clone();
        let text = get_string(&mut buf, LengthForm::Int16).unwrap().unwrap();
        assert_eq!(&*text, "abc");
        assert_eq!(text.as_bytes().as_ptr(), input[2..].as_ptr());
        assert_eq!(&buf[..], b"!");
    }
}
