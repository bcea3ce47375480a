//! Frames and headers: `int32 length, header, message`.
//!
//! A request header is version 1, or version 2 (with tagged fields) for flexible versions of the API; a
//! response header is version 0 or 1 likewise, except that `ApiVersions` responses always have version 0.
//! Versions as in Kafka's `RequestHeader.json` and `ResponseHeader.json`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use bytestring::ByteString;

use crate::messages::{ApiKey, Message, Request};
use crate::primitives::{
    DecodeError, DecodeFault, EncodeError, EncodeFault, LengthForm, get_i16, get_i32, get_string,
    get_uvarint, put_length, put_uvarint, take,
};

/// Bytes of the length prefix.
pub const PREFIX_LEN: usize = 4;
/// Fewest bytes of a request: key, version, correlation id.
pub const MIN_REQUEST_LEN: usize = 8;
/// Fewest bytes of a response: the correlation id.
pub const MIN_RESPONSE_LEN: usize = 4;

/// A length prefix that cannot be believed. The stream is out of step after it: close the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Below zero.
    #[error("frame length {length} is negative")]
    Negative {
        /// The length as read.
        length: i32,
    },
    /// Too short for a header.
    #[error("frame of {length} bytes is too short: a header has {min}")]
    TooShort {
        /// Bytes announced.
        length: usize,
        /// Bytes of the shortest header.
        min: usize,
    },
    /// Longer than the reader takes.
    #[error("frame of {length} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Bytes announced.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
}

/// Bytes that follow a length prefix, checked against `min` and `limit` (both inclusive).
///
/// # Errors
/// The length is negative, below `min` or above `limit`.
pub fn parse_length(prefix: [u8; PREFIX_LEN], min: usize, limit: usize) -> Result<usize, Error> {
    let length = i32::from_be_bytes(prefix);
    let length = usize::try_from(length).map_err(|_| Error::Negative { length })?;
    if length < min {
        return Err(Error::TooShort { length, min });
    }
    if length > limit {
        return Err(Error::TooLarge { length, limit });
    }
    Ok(length)
}

/// Takes one frame, without its prefix, off the front of `buf`; `None` while it is not all there, in which
/// case room for the rest has been reserved (at most `limit` bytes).
///
/// # Errors
/// As [`parse_length`]; `buf` is unchanged then.
pub fn take_frame(buf: &mut BytesMut, min: usize, limit: usize) -> Result<Option<Bytes>, Error> {
    let Some(prefix) = buf.first_chunk::<PREFIX_LEN>() else {
        return Ok(None);
    };
    let length = parse_length(*prefix, min, limit)?;
    let whole = PREFIX_LEN + length;
    if buf.len() < whole {
        buf.reserve(whole - buf.len());
        return Ok(None);
    }
    let mut frame = buf.split_to(whole).freeze();
    frame.advance(PREFIX_LEN);
    Ok(Some(frame))
}

/// What precedes every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// Number of the API.
    pub api_key: i16,
    /// Version of request and response.
    pub api_version: i16,
    /// Comes back in the response.
    pub correlation_id: i32,
    /// Name of the client, for logs and quotas.
    pub client_id: Option<ByteString>,
}

impl RequestHeader {
    /// Reads a header and leaves the request in `buf`. A version outside the table is no error here, so that
    /// the broker can answer it.
    ///
    /// # Errors
    /// [`DecodeFault::UnknownApi`] for a key outside the table, whose header layout is unknown; or malformed
    /// bytes.
    pub fn decode(buf: &mut Bytes) -> Result<Self, DecodeError> {
        Self::decode_inner(buf).map_err(|error| error.at("RequestHeader", ""))
    }

    fn decode_inner(buf: &mut Bytes) -> Result<Self, DecodeError> {
        let api_key = get_i16(buf)?;
        let api_version = get_i16(buf)?;
        let correlation_id = get_i32(buf)?;
        let Some(api) = ApiKey::from_i16(api_key) else {
            return Err(DecodeFault::UnknownApi {
                api_key,
                api_version,
            }
            .into());
        };
        // The client id keeps its old form in header version 2, for brokers that do not know the API.
        let client_id = get_string(buf, LengthForm::Int16)?;
        if api_version >= api.first_flexible_version() {
            skip_tagged_fields(buf)?;
        }
        Ok(Self {
            api_key,
            api_version,
            correlation_id,
            client_id,
        })
    }

    /// Appends the header.
    ///
    /// # Errors
    /// The client id is longer than 32,767 bytes.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        out.put_i16(self.api_key);
        out.put_i16(self.api_version);
        out.put_i32(self.correlation_id);
        put_length(
            out,
            self.client_id.as_ref().map(|id| id.len()),
            LengthForm::Int16,
        )
        .map_err(|error| error.at("RequestHeader", "client_id"))?;
        if let Some(client_id) = &self.client_id {
            out.put_slice(client_id.as_bytes());
        }
        if request_header_flexible(self.api_key, self.api_version) {
            put_uvarint(out, 0);
        }
        Ok(())
    }
}

/// Whether the request header has tagged fields (version 2 instead of 1). False for unknown keys.
pub fn request_header_flexible(api_key: i16, api_version: i16) -> bool {
    ApiKey::from_i16(api_key).is_some_and(|api| api_version >= api.first_flexible_version())
}

/// Whether the response header has tagged fields (version 1 instead of 0). Never for `ApiVersions`.
pub fn response_header_flexible(api_key: i16, api_version: i16) -> bool {
    api_key != ApiKey::ApiVersions.code() && request_header_flexible(api_key, api_version)
}

/// What precedes every response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The request's.
    pub correlation_id: i32,
}

impl ResponseHeader {
    /// Reads the header of a response to a request of this API and version, and leaves the response in `buf`.
    ///
    /// # Errors
    /// Malformed bytes.
    pub fn decode(buf: &mut Bytes, api_key: i16, api_version: i16) -> Result<Self, DecodeError> {
        let inner = |buf: &mut Bytes| {
            let correlation_id = get_i32(buf)?;
            if response_header_flexible(api_key, api_version) {
                skip_tagged_fields(buf)?;
            }
            Ok(Self { correlation_id })
        };
        inner(buf).map_err(|error: DecodeError| error.at("ResponseHeader", ""))
    }

    /// Appends the header.
    pub fn encode(&self, out: &mut BytesMut, api_key: i16, api_version: i16) {
        out.put_i32(self.correlation_id);
        if response_header_flexible(api_key, api_version) {
            put_uvarint(out, 0);
        }
    }
}

fn skip_tagged_fields(buf: &mut Bytes) -> Result<(), DecodeError> {
    for _ in 0..get_uvarint(buf)? {
        get_uvarint(buf)?;
        let size = get_uvarint(buf)? as usize;
        take(buf, size)?;
    }
    Ok(())
}

/// Appends a whole frame with a request: prefix, header, message. On an error `out` is as before.
///
/// # Errors
/// As [`Message::encode`] and [`RequestHeader::encode`]; or the frame would exceed 2 GiB.
pub fn encode_request<R: Request>(
    out: &mut BytesMut,
    request: &R,
    api_version: i16,
    correlation_id: i32,
    client_id: Option<&ByteString>,
) -> Result<(), EncodeError> {
    let header = RequestHeader {
        api_key: R::API_KEY,
        api_version,
        correlation_id,
        client_id: client_id.cloned(),
    };
    encode_frame(out, |out| {
        header.encode(out)?;
        request.encode(out, api_version)
    })
}

/// Appends a whole frame with a response: prefix, header, message. On an error `out` is as before.
///
/// # Errors
/// As [`Message::encode`]; or the frame would exceed 2 GiB.
pub fn encode_response<M: Message>(
    out: &mut BytesMut,
    response: &M,
    api_version: i16,
    correlation_id: i32,
) -> Result<(), EncodeError> {
    encode_frame(out, |out| {
        ResponseHeader { correlation_id }.encode(out, M::API_KEY, api_version);
        response.encode(out, api_version)
    })
}

/// Adds `missing` bytes to the length that the one frame in `frame` announces: those of its holes, which are sent from
/// elsewhere.
///
/// # Errors
/// The frame would exceed 2 GiB; it is as before then.
pub fn lengthen(frame: &mut BytesMut, missing: usize) -> Result<(), EncodeError> {
    let length = frame.len().saturating_sub(PREFIX_LEN) + missing;
    put_prefix(frame, 0, length)
}

fn put_prefix(out: &mut BytesMut, start: usize, length: usize) -> Result<(), EncodeError> {
    let prefix = i32::try_from(length).map_err(|_| EncodeFault::TooLong {
        length,
        max: 0x7fff_ffff,
    })?;
    if let Some(place) = out.get_mut(start..start + PREFIX_LEN) {
        place.copy_from_slice(&prefix.to_be_bytes());
    }
    Ok(())
}

fn encode_frame(
    out: &mut BytesMut,
    write: impl FnOnce(&mut BytesMut) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.put_i32(0);
    let result = write(out).and_then(|()| {
        let length = out.len() - start - PREFIX_LEN;
        put_prefix(out, start, length)
    });
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Reads a response frame (without prefix): its correlation id and its message, which must fill it.
///
/// # Errors
/// As [`Message::decode`], or [`DecodeFault::TrailingBytes`].
pub fn decode_response<M: Message>(
    mut frame: Bytes,
    api_version: i16,
) -> Result<(i32, M), DecodeError> {
    let header = ResponseHeader::decode(&mut frame, M::API_KEY, api_version)?;
    let message = M::decode(&mut frame, api_version)?;
    if !frame.is_empty() {
        let fault = DecodeFault::TrailingBytes { left: frame.len() };
        return Err(DecodeError::from(fault).at(M::NAME, ""));
    }
    Ok((header.correlation_id, message))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

    use super::*;
    use crate::messages::{ApiVersionsResponse, MetadataRequest, MetadataResponse, TABLE};

    #[test]
    fn lengths_are_checked_against_both_limits() {
        let parse = |length: i32| parse_length(length.to_be_bytes(), 8, 100);
        assert_eq!(parse(8), Ok(8));
        assert_eq!(parse(100), Ok(100));
        assert_eq!(parse(7), Err(Error::TooShort { length: 7, min: 8 }));
        assert_eq!(
            parse(101),
            Err(Error::TooLarge {
                length: 101,
                limit: 100
            })
        );
        assert_eq!(parse(-1), Err(Error::Negative { length: -1 }));
        assert_eq!(parse(i32::MIN), Err(Error::Negative { length: i32::MIN }));
    }

    #[test]
    fn frames_are_taken_whole_one_after_the_other() {
        let mut buf = BytesMut::new();
        for byte in [&[0u8][..], &[0, 0, 4, 1, 2, 3], &[4, 0, 0, 0, 4]] {
            assert_eq!(take_frame(&mut buf, 4, 10), Ok(None));
            buf.put_slice(byte);
        }
        assert_eq!(
            take_frame(&mut buf, 4, 10),
            Ok(Some(Bytes::from_static(&[1, 2, 3, 4])))
        );
        assert_eq!(take_frame(&mut buf, 4, 10), Ok(None));
        assert_eq!(&buf[..], &[0, 0, 0, 4]);
        assert!(take_frame(&mut buf, 5, 10).is_err());
    }

    #[test]
    fn request_headers_agree_with_the_reference_crate() {
        for &(api, min, max, flexible) in TABLE {
            for version in min..=max {
                for client_id in [None, Some("kcat")] {
                    let header = RequestHeader {
                        api_key: api.code(),
                        api_version: version,
                        correlation_id: -7,
                        client_id: client_id.map(ByteString::from_static),
                    };
                    let mut out = BytesMut::new();
                    header.encode(&mut out).unwrap();
                    let theirs = kafka_protocol::messages::RequestHeader::default()
                        .with_request_api_key(api.code())
                        .with_request_api_version(version)
                        .with_correlation_id(-7)
                        .with_client_id(client_id.map(StrBytes::from_static_str));
                    let header_version = kafka_protocol::messages::ApiKey::try_from(api.code())
                        .unwrap()
                        .request_header_version(version);
                    assert_eq!(header_version == 2, version >= flexible);
                    let mut expected = BytesMut::new();
                    theirs.encode(&mut expected, header_version).unwrap();
                    assert_eq!(out, expected, "{api:?} {version}");
                    let mut bytes = out.freeze();
                    assert_eq!(RequestHeader::decode(&mut bytes), Ok(header));
                    assert!(bytes.is_empty());
                }
            }
        }
    }

    #[test]
    fn response_headers_agree_with_the_reference_crate() {
        for &(api, min, max, _) in TABLE {
            for version in min..=max {
                let header_version = kafka_protocol::messages::ApiKey::try_from(api.code())
                    .unwrap()
                    .response_header_version(version);
                let flexible = response_header_flexible(api.code(), version);
                assert_eq!(header_version == 1, flexible, "{api:?} {version}");
                let mut out = BytesMut::new();
                ResponseHeader { correlation_id: 77 }.encode(&mut out, api.code(), version);
                let mut bytes = out.freeze();
                let theirs = kafka_protocol::messages::ResponseHeader::decode(
                    &mut bytes.clone(),
                    header_version,
                );
                assert_eq!(theirs.unwrap().correlation_id, 77);
                let ours = ResponseHeader::decode(&mut bytes, api.code(), version);
                assert_eq!(ours, Ok(ResponseHeader { correlation_id: 77 }));
                assert!(bytes.is_empty());
            }
        }
    }

    #[test]
    fn tagged_fields_of_a_header_are_skipped() {
        let mut bytes =
            Bytes::from_static(&[0, 18, 0, 3, 0, 0, 0, 9, 0, 1, b'x', 2, 0, 1, 7, 5, 0, 42]);
        let header = RequestHeader::decode(&mut bytes).unwrap();
        assert_eq!(header.correlation_id, 9);
        assert_eq!(&bytes[..], &[42]);
    }

    #[test]
    fn unknown_api_is_named_and_a_newer_version_is_left_to_the_broker() {
        let mut bytes = Bytes::from_static(&[0x7f, 0, 0, 1, 0, 0, 0, 9, 0xff, 0xff]);
        let error = RequestHeader::decode(&mut bytes).unwrap_err();
        assert_eq!(
            error.fault(),
            &DecodeFault::UnknownApi {
                api_key: 0x7f00,
                api_version: 1
            }
        );

        let mut bytes = Bytes::from_static(&[0, 18, 0, 99, 0, 0, 0, 9, 0xff, 0xff, 0]);
        assert_eq!(RequestHeader::decode(&mut bytes).unwrap().api_version, 99);
    }

    #[test]
    fn frames_round_trip_and_trailing_bytes_are_refused() {
        let mut out = BytesMut::new();
        encode_request(&mut out, &MetadataRequest::default(), 9, 5, None).unwrap();
        let mut frame = take_frame(&mut out, MIN_REQUEST_LEN, 100).unwrap().unwrap();
        assert!(out.is_empty());
        assert_eq!(RequestHeader::decode(&mut frame).unwrap().correlation_id, 5);
        assert_eq!(
            MetadataRequest::decode(&mut frame, 9),
            Ok(MetadataRequest::default())
        );

        encode_response(&mut out, &ApiVersionsResponse::default(), 3, 6).unwrap();
        let frame = take_frame(&mut out, MIN_RESPONSE_LEN, 100)
            .unwrap()
            .unwrap();
        assert_eq!(
            decode_response(frame.clone(), 3),
            Ok((6, ApiVersionsResponse::default()))
        );
        let longer = [&frame[..], &[0]].concat();
        let error = decode_response::<ApiVersionsResponse>(longer.into(), 3).unwrap_err();
        assert_eq!(error.fault(), &DecodeFault::TrailingBytes { left: 1 });
    }

    #[test]
    fn failed_encoding_leaves_the_buffer_as_it_was() {
        let mut out = BytesMut::from(&b"before"[..]);
        assert!(encode_response(&mut out, &MetadataResponse::default(), 99, 6).is_err());
        assert_eq!(&out[..], b"before");
    }
}
