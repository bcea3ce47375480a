//! Sealed documents: the versioned, self-checksummed JSON of everything the commit protocol writes.
//!
//! ```text
//! {"format":"logferry-manifest","version":1,"checksum":"crc32c:9ae0daaf","body":{…}}
//! ```
//! The checksum is CRC-32C over the bytes of `body` exactly as they stand in the file, so a document
//! that was cut short, edited or reformatted is refused rather than half understood.

use bytes::Bytes;
use loader_store::{Store, StorePath};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::commit::steps;
use crate::error::Error;

/// A kind of document with its format name and version.
pub trait Document: Serialize + DeserializeOwned {
    /// Name of the format, the first field of every file.
    const FORMAT: &'static str;
    /// The one version this build reads and writes.
    const VERSION: u32;
}

/// Why a document cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The text is not the JSON of a sealed document.
    #[error("not a sealed document")]
    NotADocument(#[source] serde_json::Error),
    /// Another kind of document.
    #[error("is a {found}, not a {expected}")]
    WrongFormat {
        /// Format the file names.
        found: String,
        /// Format that was asked for.
        expected: &'static str,
    },
    /// Written by a version this build does not read.
    #[error(
        "has version {found}, this build reads version {expected}; use the build that wrote it or a newer one"
    )]
    WrongVersion {
        /// Version the file names.
        found: u32,
        /// The version this build reads.
        expected: u32,
    },
    /// The body is not what was written.
    #[error("its checksum is {found}, its body gives {computed}")]
    Checksum {
        /// Checksum in the file.
        found: String,
        /// Checksum of the body in the file.
        computed: String,
    },
    /// The checksum is right, the content is not of this format.
    #[error("its body does not fit the format")]
    Body(#[source] serde_json::Error),
}

#[derive(Serialize)]
struct EnvelopeOut<'a> {
    format: &'static str,
    version: u32,
    checksum: String,
    body: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvelopeIn<'a> {
    format: String,
    version: u32,
    checksum: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// CRC-32C as the documents and manifests spell it.
#[must_use]
pub fn checksum(bytes: &[u8]) -> String {
    spell_checksum(crc32c::crc32c(bytes))
}

/// The spelling of a finished CRC-32C.
#[must_use]
pub fn spell_checksum(crc: u32) -> String {
    format!("crc32c:{crc:08x}")
}

/// The bytes of a sealed document.
///
/// # Errors
/// [`Error::Internal`], only when the value cannot be expressed as JSON (a map with keys that are not text).
pub fn seal<D: Document>(document: &D) -> Result<Bytes, Error> {
    sealed(document).map_err(|source| Error::Internal {
        what: format!("cannot write a {} as JSON", D::FORMAT),
        source: Some(Box::new(source)),
    })
}

fn sealed<D: Document>(document: &D) -> Result<Bytes, serde_json::Error> {
    let body = RawValue::from_string(serde_json::to_string_pretty(document)?)?;
    let envelope = EnvelopeOut {
        format: D::FORMAT,
        version: D::VERSION,
        checksum: checksum(body.get().as_bytes()),
        body: &body,
    };
    let mut text = serde_json::to_vec(&envelope)?;
    text.push(b'\n');
    Ok(text.into())
}

/// Reads the document at `path`; `None` where there is nothing.
///
/// # Errors
/// [`Error::Damaged`] when it is there and unsound; whatever the store says.
pub async fn read<D: Document>(store: &dyn Store, path: &StorePath) -> Result<Option<D>, Error> {
    opened(path, steps::persistently(store, || store.read(path)).await)
}

/// As [`read`], without waiting for trouble of the store that passes.
///
/// # Errors
/// As [`read`].
pub async fn read_once<D: Document>(
    store: &dyn Store,
    path: &StorePath,
) -> Result<Option<D>, Error> {
    opened(path, store.read(path).await)
}

fn opened<D: Document>(
    path: &StorePath,
    read: loader_store::Result<Bytes>,
) -> Result<Option<D>, Error> {
    let bytes = match read {
        Err(loader_store::Error::NotFound { .. }) => return Ok(None),
        read => read?,
    };
    unseal(&bytes).map(Some).map_err(|damage| Error::Damaged {
        path: path.clone(),
        damage,
    })
}

/// Reads a sealed document back.
///
/// # Errors
/// [`Damage`] says what is wrong with it.
pub fn unseal<D: Document>(bytes: &[u8]) -> Result<D, Damage> {
    let envelope: EnvelopeIn<'_> = serde_json::from_slice(bytes).map_err(Damage::NotADocument)?;
    if envelope.format != D::FORMAT {
        return Err(Damage::WrongFormat {
            found: envelope.format,
            expected: D::FORMAT,
        });
    }
    if envelope.version != D::VERSION {
        return Err(Damage::WrongVersion {
            found: envelope.version,
            expected: D::VERSION,
        });
    }
    let computed = checksum(envelope.body.get().as_bytes());
    if computed != envelope.checksum {
        return Err(Damage::Checksum {
            found: envelope.checksum,
            computed,
        });
    }
    serde_json::from_str(envelope.body.get()).map_err(Damage::Body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        end: i64,
    }
    impl Document for Sample {
        const FORMAT: &'static str = "logferry-sample";
        const VERSION: u32 = 3;
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Other {}
    impl Document for Other {
        const FORMAT: &'static str = "logferry-other";
        const VERSION: u32 = 3;
    }

    #[test]
    fn what_was_sealed_opens() {
        let bytes = seal(&Sample { end: 7 }).unwrap();
        assert_eq!(unseal::<Sample>(&bytes).unwrap(), Sample { end: 7 });
    }

    #[test]
    fn every_single_byte_change_is_noticed_or_harmless() {
        let bytes = seal(&Sample { end: 7 }).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            if let Ok(read) = unseal::<Sample>(&changed) {
                // The line end is the only byte outside the document.
                assert_eq!((at, read.end), (bytes.len() - 1, 7), "byte {at}");
            }
        }
    }

    #[test]
    fn truncated_foreign_and_newer_documents_are_told_apart() {
        let bytes = seal(&Sample { end: 7 }).unwrap();
        assert!(matches!(
            unseal::<Sample>(&bytes[..bytes.len() - 4]),
            Err(Damage::NotADocument(_))
        ));
        assert!(matches!(
            unseal::<Other>(&bytes),
            Err(Damage::WrongFormat { .. })
        ));
        let newer = String::from_utf8(bytes.to_vec())
            .unwrap()
            .replace("\"version\":3", "\"version\":4");
        assert!(matches!(
            unseal::<Sample>(newer.as_bytes()),
            Err(Damage::WrongVersion { found: 4, .. })
        ));
    }
}
