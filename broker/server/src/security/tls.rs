//! TLS of the listeners: PEM files in, handshakes out.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject},
        },
        server::WebPkiClientVerifier,
        version::{TLS12, TLS13},
    },
};
use x509_cert::der::Decode;

use super::{
    FileFault, Stamp,
    config::{ClientAuth, SecurityProtocol, TlsConfig, TlsVersion},
    unusable,
};
use crate::error::Error;

/// What was read of the files of `[broker.tls]`.
#[derive(Debug)]
pub(crate) struct Tls {
    config: TlsConfig,
    current: RwLock<Current>,
}

#[derive(Debug, Clone)]
struct Current {
    seen: Vec<Stamp>,
    /// Asks clients for certificates as configured.
    ssl: Arc<ServerConfig>,
    /// Asks for none: SASL says who they are.
    sasl_ssl: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files. Blocks.
    pub(super) fn open(config: &TlsConfig) -> Result<Self, Error> {
        Ok(Self {
            current: RwLock::new(read(config)?),
            config: config.clone(),
        })
    }

    /// Where the private key is.
    pub(super) fn key_file(&self) -> &Path {
        &self.config.key_file
    }

    /// What accepts the next connection.
    pub(crate) fn acceptor(&self, protocol: SecurityProtocol) -> TlsAcceptor {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(if protocol == SecurityProtocol::Ssl {
            &current.ssl
        } else {
            &current.sasl_ssl
        }))
    }

    /// Reads the files again if one has changed, and says whether. Connections that are open stay as they are.
    pub(super) fn refresh(&self) -> Result<bool, Error> {
        let seen = Stamp::all(files(&self.config));
        let lock = || self.current.write().unwrap_or_else(PoisonError::into_inner);
        if lock().seen == seen {
            return Ok(false);
        }
        // Whatever comes of it, these files are not tried again until they change.
        lock().seen = seen;
        let read = read(&self.config)?;
        *lock() = read;
        Ok(true)
    }
}

fn files(config: &TlsConfig) -> impl Iterator<Item = &PathBuf> {
    [&config.certificate_file, &config.key_file]
        .into_iter()
        .chain(&config.client_ca_file)
}

fn read(config: &TlsConfig) -> Result<Current, Error> {
    let seen = Stamp::all(files(config));
    let chain = certificates(&config.certificate_file)?;
    let key = PrivateKeyDer::from_pem_file(&config.key_file);
    let key =
        key.map_err(|error| unusable(&config.key_file, pem_fault(error, FileFault::NoKey)))?;
    let provider = Arc::new(ring::default_provider());
    let versions: &[&SupportedProtocolVersion] = match config.min_version {
        TlsVersion::V1_2 => &[&TLS12, &TLS13],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let builder = || {
        ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| unusable(&config.key_file, FileFault::Tls(error)))
    };
    let with = |builder: tokio_rustls::rustls::ConfigBuilder<_, _>| {
        builder
            .with_single_cert(chain.clone(), key.clone_key())
            .map(Arc::new)
            .map_err(|error| unusable(&config.certificate_file, FileFault::Tls(error)))
    };
    let sasl_ssl = with(builder()?.with_no_client_auth())?;
    let ssl = match (&config.client_ca_file, config.client_auth) {
        (None, _) | (_, ClientAuth::None) => Arc::clone(&sasl_ssl),
        (Some(ca_file), wanted) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca_file)? {
                let added = roots.add(certificate);
                added.map_err(|error| unusable(ca_file, FileFault::Tls(error)))?;
            }
            let clients =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let clients = if wanted == ClientAuth::Requested {
                clients.allow_unauthenticated()
            } else {
                clients
            };
            let clients = clients
                .build()
                .map_err(|error| unusable(ca_file, FileFault::ClientCa(error.to_string())))?;
            with(builder()?.with_client_cert_verifier(clients))?
        }
    };
    Ok(Current {
        seen,
        ssl,
        sasl_ssl,
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> =
        found.map_err(|error| unusable(path, pem_fault(error, FileFault::NoCertificate)))?;
    if found.is_empty() {
        return Err(unusable(path, FileFault::NoCertificate));
    }
    Ok(found)
}

fn pem_fault(error: pem::Error, nothing: FileFault) -> FileFault {
    if let pem::Error::Io(error) = error {
        return FileFault::Unreadable(error);
    }
    if matches!(error, pem::Error::NoItemsFound) {
        return nothing;
    }
    // Its own text may hold a line of the file.
    FileFault::NotPem
}

/// The subject of a certificate as Kafka names it, such as `CN=loader,O=Example`; none if it cannot be read.
pub(crate) fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate().subject().to_string())
}

#[cfg(test)]
mod tests {
    use test_support::Authority;

    use super::*;

    #[test]
    fn a_client_is_named_by_the_subject_of_its_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ours").unwrap();
        let client = authority.client("loader").unwrap();
        let certificate = certificates(&client.certificate_file).unwrap().remove(0);
        assert_eq!(subject(&certificate).unwrap(), "CN=loader,O=Test");
        assert_eq!(subject(&CertificateDer::from(vec![0x30, 0x82, 0xff])), None);
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ours").unwrap();
        let host = authority.host("broker", &["localhost"]).unwrap();
        let other = authority.host("other", &["localhost"]).unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        let good = TlsConfig {
            certificate_file: host.certificate_file.clone(),
            key_file: host.key_file.clone(),
            ..TlsConfig::default()
        };
        Tls::open(&good).unwrap();
        for (certificate_file, key_file, at_fault, about) in [
            (&empty, &host.key_file, &empty, "no certificate"),
            (&host.certificate_file, &empty, &empty, "no private key"),
            (
                &host.certificate_file,
                &folder.path().join("gone"),
                &folder.path().join("gone"),
                "cannot be read",
            ),
            (
                &host.certificate_file,
                &other.key_file,
                &host.certificate_file,
                "for TLS",
            ),
        ] {
            let config = TlsConfig {
                certificate_file: certificate_file.clone(),
                key_file: key_file.clone(),
                ..TlsConfig::default()
            };
            let Err(Error::Security { path, source }) = Tls::open(&config) else {
                panic!("{config:?} is taken")
            };
            assert_eq!(path, *at_fault);
            assert!(source.to_string().contains(about), "{source}");
        }
    }
}
