//! How each field type is written: the rows of a message table say which fields, this says how.

use std::mem::size_of;

use bytes::{BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use uuid::Uuid;

use crate::primitives::{
    DecodeError, DecodeFault, EncodeError, EncodeFault, LengthForm, get_bytes, get_f64, get_i8,
    get_i16, get_i32, get_i64, get_length, get_string, get_u8, get_u16, get_uuid, get_uvarint,
    put_length, put_uvarint, take,
};

/// What the layout of a field depends on beside its type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Version of the API.
    pub(crate) version: i16,
    /// Whether this version has compact lengths and tagged fields.
    pub(crate) flexible: bool,
    /// Whether this field may be null in this version.
    pub(crate) nullable: bool,
}

impl Form {
    pub(crate) fn of_version(version: i16, flexible: bool) -> Self {
        Self {
            version,
            flexible,
            nullable: false,
        }
    }

    fn string(self) -> LengthForm {
        if self.flexible {
            LengthForm::Compact
        } else {
            LengthForm::Int16
        }
    }

    pub(crate) fn long(self) -> LengthForm {
        if self.flexible {
            LengthForm::Compact
        } else {
            LengthForm::Int32
        }
    }

    pub(crate) fn nullable(self, nullable: bool) -> Self {
        Self { nullable, ..self }
    }

    fn null<T>(self) -> Result<Option<T>, DecodeError> {
        if self.nullable {
            Ok(None)
        } else {
            Err(DecodeFault::Null.into())
        }
    }

    fn put_null(self, out: &mut BytesMut, form: LengthForm) -> Result<(), EncodeError> {
        if !self.nullable {
            return Err(EncodeFault::Null {
                version: self.version,
            }
            .into());
        }
        put_length(out, None, form)
    }
}

/// A type that can stand in a message table.
pub(crate) trait Wire: Sized {
    /// Kafka's default for a field whose table names none: zero, empty, and for nullable types empty too.
    fn empty() -> Self;
    /// Fewest bytes one value takes in this form; at least 1. It bounds what an array may announce.
    fn min_len(form: Form) -> usize;
    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError>;
    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError>;
    /// Tells `note` every error code inside.
    fn note_errors(&self, _note: &mut dyn FnMut(i16)) {}
}

macro_rules! fixed_width {
    ($($ty:ty, $put:ident, $get:ident;)+) => {$(
        impl Wire for $ty {
            fn empty() -> Self {
                Self::default()
            }

            fn min_len(_: Form) -> usize {
                size_of::<Self>()
            }

            #[inline]
            fn write(&self, out: &mut BytesMut, _: Form) -> Result<(), EncodeError> {
                out.$put(*self);
                Ok(())
            }

            #[inline]
            fn read(buf: &mut Bytes, _: Form) -> Result<Self, DecodeError> {
                $get(buf)
            }
        }
    )+};
}

fixed_width! {
    i8, put_i8, get_i8;
    i16, put_i16, get_i16;
    i32, put_i32, get_i32;
    i64, put_i64, get_i64;
    u16, put_u16, get_u16;
    f64, put_f64, get_f64;
}

impl Wire for bool {
    fn empty() -> Self {
        false
    }

    fn min_len(_: Form) -> usize {
        1
    }

    #[inline]
    fn write(&self, out: &mut BytesMut, _: Form) -> Result<(), EncodeError> {
        out.put_u8(u8::from(*self));
        Ok(())
    }

    #[inline]
    fn read(buf: &mut Bytes, _: Form) -> Result<Self, DecodeError> {
        // Any non-zero byte is true, as in Java.
        Ok(get_u8(buf)? != 0)
    }
}

impl Wire for Uuid {
    fn empty() -> Self {
        Self::nil()
    }

    fn min_len(_: Form) -> usize {
        16
    }

    #[inline]
    fn write(&self, out: &mut BytesMut, _: Form) -> Result<(), EncodeError> {
        out.put_slice(self.as_bytes());
        Ok(())
    }

    #[inline]
    fn read(buf: &mut Bytes, _: Form) -> Result<Self, DecodeError> {
        get_uuid(buf)
    }
}

impl Wire for ByteString {
    fn empty() -> Self {
        Self::new()
    }

    fn min_len(form: Form) -> usize {
        if form.flexible { 1 } else { 2 }
    }

    #[inline]
    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        put_length(out, Some(self.len()), form.string())?;
        out.put_slice(self.as_bytes());
        Ok(())
    }

    #[inline]
    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        get_string(buf, form.string())?.ok_or_else(|| DecodeFault::Null.into())
    }
}

impl Wire for Option<ByteString> {
    fn empty() -> Self {
        Some(ByteString::new())
    }

    fn min_len(form: Form) -> usize {
        ByteString::min_len(form)
    }

    #[inline]
    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        match self {
            Some(text) => text.write(out, form),
            None => form.put_null(out, form.string()),
        }
    }

    #[inline]
    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        match get_string(buf, form.string())? {
            None => form.null(),
            some => Ok(some),
        }
    }
}

impl Wire for Bytes {
    fn empty() -> Self {
        Self::new()
    }

    fn min_len(form: Form) -> usize {
        if form.flexible { 1 } else { 4 }
    }

    #[inline]
    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        put_length(out, Some(self.len()), form.long())?;
        out.put_slice(self);
        Ok(())
    }

    #[inline]
    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        get_bytes(buf, form.long())?.ok_or_else(|| DecodeFault::Null.into())
    }
}

impl Wire for Option<Bytes> {
    fn empty() -> Self {
        Some(Bytes::new())
    }

    fn min_len(form: Form) -> usize {
        Bytes::min_len(form)
    }

    #[inline]
    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        match self {
            Some(bytes) => bytes.write(out, form),
            None => form.put_null(out, form.long()),
        }
    }

    #[inline]
    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        match get_bytes(buf, form.long())? {
            None => form.null(),
            some => Ok(some),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn empty() -> Self {
        Self::new()
    }

    fn min_len(form: Form) -> usize {
        if form.flexible { 1 } else { 4 }
    }

    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        put_length(out, Some(self.len()), form.long())?;
        let form = form.nullable(false);
        self.iter().try_for_each(|element| element.write(out, form))
    }

    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        let count = get_length(buf, form.long())?.ok_or(DecodeFault::Null)?;
        read_elements(buf, count, form.nullable(false))
    }

    fn note_errors(&self, note: &mut dyn FnMut(i16)) {
        for item in self {
            item.note_errors(note);
        }
    }
}

impl<T: Wire> Wire for Option<Vec<T>> {
    fn empty() -> Self {
        Some(Vec::new())
    }

    fn min_len(form: Form) -> usize {
        Vec::<T>::min_len(form)
    }

    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        match self {
            Some(elements) => elements.write(out, form),
            None => form.put_null(out, form.long()),
        }
    }

    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        match get_length(buf, form.long())? {
            None => form.null(),
            Some(count) => read_elements(buf, count, form.nullable(false)).map(Some),
        }
    }

    fn note_errors(&self, note: &mut dyn FnMut(i16)) {
        if let Some(items) = self {
            items.note_errors(note);
        }
    }
}

/// A struct that may be null: a byte, negative for null, and the struct.
impl<T: Wire> Wire for Option<Box<T>> {
    fn empty() -> Self {
        None
    }

    fn min_len(_: Form) -> usize {
        1
    }

    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        match self {
            Some(value) => {
                out.put_i8(1);
                value.write(out, form.nullable(false))
            }
            None if form.nullable => {
                out.put_i8(-1);
                Ok(())
            }
            None => Err(EncodeFault::Null {
                version: form.version,
            }
            .into()),
        }
    }

    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        if get_i8(buf)? < 0 {
            return form.null();
        }
        T::read(buf, form.nullable(false)).map(|value| Some(Box::new(value)))
    }

    fn note_errors(&self, note: &mut dyn FnMut(i16)) {
        if let Some(item) = self {
            item.note_errors(note);
        }
    }
}

/// Reads `count` elements. What is allocated ahead never exceeds the bytes that remain, whatever the count
/// says; beyond that the vector grows with elements that were really there.
fn read_elements<T: Wire>(
    buf: &mut Bytes,
    count: usize,
    form: Form,
) -> Result<Vec<T>, DecodeError> {
    let remaining = buf.len();
    if count > remaining / T::min_len(form).max(1) {
        return Err(DecodeFault::TooManyElements { count, remaining }.into());
    }
    let mut elements = Vec::with_capacity(count.min(remaining / size_of::<T>().max(1)));
    for _ in 0..count {
        elements.push(T::read(buf, form)?);
    }
    Ok(elements)
}

/// The tagged fields of one struct while it is being written.
#[derive(Debug, Default)]
pub(crate) struct TaggedFields {
    count: u32,
    encoded: BytesMut,
}

impl TaggedFields {
    /// Adds a field. Tags must come in ascending order, which a table's order of fields gives.
    pub(crate) fn put<T: Wire>(
        &mut self,
        tag: u32,
        value: &T,
        form: Form,
    ) -> Result<(), EncodeError> {
        let mut bytes = BytesMut::new();
        value.write(&mut bytes, form)?;
        let length = u32::try_from(bytes.len()).map_err(|_| EncodeFault::TooLong {
            length: bytes.len(),
            max: 0xffff_ffff,
        })?;
        put_uvarint(&mut self.encoded, tag);
        put_uvarint(&mut self.encoded, length);
        self.encoded.put_slice(&bytes);
        self.count += 1;
        Ok(())
    }

    /// Writes the section: how many, then each with tag and size.
    pub(crate) fn write_to(&self, out: &mut BytesMut) {
        put_uvarint(out, self.count);
        out.put_slice(&self.encoded);
    }
}

/// Reads a struct's tagged fields; `accept` gets every tag and its bytes, and skips those it does not know.
pub(crate) fn read_tagged_fields(
    buf: &mut Bytes,
    mut accept: impl FnMut(u32, &mut Bytes) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    for _ in 0..get_uvarint(buf)? {
        let tag = get_uvarint(buf)?;
        let size = get_uvarint(buf)? as usize;
        accept(tag, &mut take(buf, size)?)?;
    }
    Ok(())
}

/// Reads a value that must fill the bytes of its tagged field.
pub(crate) fn read_whole<T: Wire>(value: &mut Bytes, form: Form) -> Result<T, DecodeError> {
    let decoded = T::read(value, form)?;
    if value.is_empty() {
        Ok(decoded)
    } else {
        Err(DecodeFault::TaggedFieldSize { left: value.len() }.into())
    }
}
