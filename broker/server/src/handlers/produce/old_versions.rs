//! Produce 0–2, which carry record formats that are not taken here: read as far as an answer needs, and refused.

use broker_protocol::{
    ByteString, DecodeError, ErrorCode,
    frame::RequestHeader,
    primitives::{LengthForm, get_bytes, get_i16, get_i32, get_length, get_string},
};
use bytes::{BufMut, Bytes, BytesMut};

use super::super::{Refused, Reply};

/// Answers versions 0–2 in their own form; the codec does not know them.
pub(in super::super) fn refuse_old(
    body: Bytes,
    header: &RequestHeader,
) -> Result<Option<Reply>, Refused> {
    let (acks, topics) = parse_old(body)?;
    if acks == 0 {
        let reason = format!("produce version {} is too old", header.api_version);
        return Err(Refused::Unacknowledged { reason });
    }
    let refused = topics.iter().map(|(_, partitions)| partitions.len()).sum();
    let errors = vec![ErrorCode::UnsupportedVersion.code(); refused];
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    frame.put_i32(header.correlation_id);
    put_count(&mut frame, topics.len());
    for (name, partitions) in topics {
        // A string of the request, whose length had two bytes there, too.
        frame.put_i16(i16::try_from(name.len()).unwrap_or(i16::MAX));
        frame.put_slice(name.as_bytes());
        put_count(&mut frame, partitions.len());
        for index in partitions {
            frame.put_i32(index);
            frame.put_i16(ErrorCode::UnsupportedVersion.code());
            frame.put_i64(-1);
            if header.api_version >= 2 {
                frame.put_i64(-1);
            }
        }
    }
    if header.api_version >= 1 {
        frame.put_i32(0);
    }
    let length = i32::try_from(frame.len() - size_of::<i32>()).unwrap_or(i32::MAX);
    if let Some(prefix) = frame.first_chunk_mut() {
        *prefix = length.to_be_bytes();
    }
    Ok(Some(Reply::whole(frame, errors)))
}

/// A count or length that came out of a request, whose own length has 31 bits.
fn put_count(frame: &mut BytesMut, count: usize) {
    frame.put_i32(i32::try_from(count).unwrap_or(i32::MAX));
}

type OldTopics = Vec<(ByteString, Vec<i32>)>;

/// `acks i16, timeout i32, [topic [partition i32, records bytes]]`.
fn parse_old(mut body: Bytes) -> Result<(i16, OldTopics), DecodeError> {
    let acks = get_i16(&mut body)?;
    get_i32(&mut body)?;
    let mut topics = Vec::new();
    for _ in 0..get_length(&mut body, LengthForm::Int32)?.unwrap_or(0) {
        let name = get_string(&mut body, LengthForm::Int16)?.unwrap_or_default();
        let mut partitions = Vec::new();
        for _ in 0..get_length(&mut body, LengthForm::Int32)?.unwrap_or(0) {
            partitions.push(get_i32(&mut body)?);
            get_bytes(&mut body, LengthForm::Int32)?;
        }
        topics.push((name, partitions));
    }
    Ok((acks, topics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_requests_are_read_without_trusting_their_counts() {
        let mut body = BytesMut::new();
        body.put_i16(1);
        body.put_i32(1000);
        body.put_i32(i32::MAX);
        assert!(parse_old(body.freeze()).is_err());
    }
}
