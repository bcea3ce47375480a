//! Records within an answer, which need not pass through memory on their way.

use std::{fmt, sync::OnceLock};

use bytes::{Bytes, BytesMut};

use super::wire::{Form, Wire};
use crate::primitives::{DecodeError, EncodeError, put_length};

/// Bytes of a message that are in it, or that are sent from elsewhere (a file) where they belong.
///
/// Of bytes that are apart, encoding writes the length only. A frame with such holes is
/// [lengthened](crate::frame::lengthen) by what is missing in it, and sent in parts: up to [`Hole::position`], the hole's
/// bytes, and so on. Decoding never makes one.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// They are here.
    Bytes(Bytes),
    /// They are elsewhere.
    Apart(Hole),
}

/// Room for bytes that are not in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    len: usize,
    number: usize,
    position: OnceLock<usize>,
}

impl Hole {
    /// Of `len` bytes; `number` is for whoever sends them.
    pub fn new(len: usize, number: usize) -> Self {
        Self {
            len,
            number,
            position: OnceLock::new(),
        }
    }

    /// The number that it was made with.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Where in the buffer that the message was first encoded to its bytes belong: before the byte of this index. `None`
    /// before that.
    pub fn position(&self) -> Option<usize> {
        self.position.get().copied()
    }
}

impl Payload {
    /// How many bytes, wherever they are.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Apart(hole) => hole.len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that are here: none if they are apart.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Apart(_) => Bytes::new(),
        }
    }

    /// The hole, if they are apart.
    pub fn hole(&self) -> Option<&Hole> {
        match self {
            Self::Bytes(_) => None,
            Self::Apart(hole) => Some(hole),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Apart(hole) => hole.fmt(f),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl Wire for Option<Payload> {
    fn empty() -> Self {
        Some(Payload::default())
    }

    fn min_len(form: Form) -> usize {
        Bytes::min_len(form)
    }

    fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
        match self {
            Some(Payload::Bytes(bytes)) => bytes.write(out, form),
            Some(Payload::Apart(hole)) => {
                put_length(out, Some(hole.len), form.long())?;
                hole.position.get_or_init(|| out.len());
                Ok(())
            }
            None => None::<Bytes>.write(out, form),
        }
    }

    fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
        Ok(Option::<Bytes>::read(buf, form)?.map(Payload::Bytes))
    }
}
