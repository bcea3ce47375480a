//! TLS to the brokers: whom to trust, who we are, and what went wrong in words.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as RustlsError, RootCertStore,
};

use crate::error::{Error, Result};

/// TLS to the brokers; 1.2 and 1.3. The broker's certificate must be good and name the host that is connected
/// to: there is no switch to do without.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Certificates of the authorities that brokers are checked by, PEM. None: those of the system
    /// (`ssl.truststore.location`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Certificate of this client and those between it and the authority's, PEM; for brokers that ask
    /// for one (`ssl.keystore.certificate.chain`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_file: Option<PathBuf>,
    /// Its private key, PEM, not encrypted (`ssl.keystore.key`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

/// What is wrong between the two ends of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsFault {
    /// The broker's certificate was good until some time ago.
    Expired,
    /// The broker's certificate will be good at some later time.
    NotYetValid,
    /// Nobody who is trusted here signed the broker's certificate.
    Untrusted,
    /// The broker's certificate names other hosts.
    WrongName,
    /// The broker wants a certificate of this client, or another one.
    ClientCertificate,
    /// The other side speaks something else.
    NotTls,
    /// The other side closed the connection in the handshake, as one that speaks something else does.
    Closed,
    /// Anything else; see the cause.
    Other,
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the broker's certificate has expired",
            Self::NotYetValid => "the broker's certificate is not valid yet",
            Self::Untrusted => "no authority that is trusted here signed the broker's certificate",
            Self::WrongName => "the broker's certificate is for another name",
            Self::ClientCertificate => {
                "the broker wants a certificate of this client, and got none or one it does not accept"
            }
            Self::NotTls => "what answers there does not speak TLS",
            Self::Closed => "the connection was closed in the TLS handshake",
            Self::Other => "the TLS handshake failed",
        })
    }
}

impl TlsFault {
    /// What an operator can do.
    pub(crate) const fn remedy(self) -> &'static str {
        match self {
            Self::Expired | Self::NotYetValid => {
                "renew the broker's certificate, or set this machine's clock"
            }
            Self::Untrusted => {
                "set tls.ca_file to the certificate of the authority that signed the broker's"
            }
            Self::WrongName => {
                "connect to a name that the broker's certificate holds, also in its advertised address, or \
                 give it a certificate for this one"
            }
            Self::ClientCertificate => {
                "set tls.certificate_file and tls.key_file to a certificate that the broker accepts"
            }
            Self::NotTls => "use the address of the broker's TLS listener, or leave out tls",
            Self::Closed => {
                "check that the broker runs and that this is its TLS listener; if it is a plaintext one, leave \
                 out tls"
            }
            Self::Other => "see the cause; both sides need a TLS version and a cipher in common",
        }
    }

    /// What TLS found, if it was TLS that failed.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        let found = error.get_ref()?.downcast_ref::<RustlsError>()?;
        Some(
            if let RustlsError::InvalidCertificate(certificate) = found {
                Self::of_certificate(certificate)
            } else if let RustlsError::AlertReceived(alert) = found {
                Self::of_alert(*alert)
            } else if matches!(found, RustlsError::InvalidMessage(_)) {
                Self::NotTls
            } else {
                Self::Other
            },
        )
    }

    fn of_certificate(error: &CertificateError) -> Self {
        use CertificateError as Found;
        if matches!(error, Found::Expired | Found::ExpiredContext { .. }) {
            Self::Expired
        } else if matches!(error, Found::NotValidYet | Found::NotValidYetContext { .. }) {
            Self::NotYetValid
        } else if matches!(error, Found::UnknownIssuer) {
            Self::Untrusted
        } else if matches!(
            error,
            Found::NotValidForName | Found::NotValidForNameContext { .. }
        ) {
            Self::WrongName
        } else {
            Self::Other
        }
    }

    fn of_alert(alert: AlertDescription) -> Self {
        use AlertDescription as Alert;
        let about_ours = matches!(
            alert,
            Alert::CertificateRequired
                | Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
        );
        if about_ours {
            Self::ClientCertificate
        } else {
            Self::Other
        }
    }
}

/// Reads the files. Cancel safe.
///
/// # Errors
/// [`Error::InvalidConfig`] names the setting whose file cannot be used.
pub(crate) async fn connector(config: &TlsConfig) -> Result<TlsConnector> {
    let config = config.clone();
    let built = tokio::task::spawn_blocking(move || build(&config)).await;
    let built = built.map_err(|_| invalid("tls", "could not be read".to_owned()))??;
    Ok(TlsConnector::from(Arc::new(built)))
}

fn build(config: &TlsConfig) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &config.ca_file {
        Some(path) => {
            for certificate in certificates("tls.ca_file", path)? {
                roots
                    .add(certificate)
                    .map_err(|error| unusable("tls.ca_file", path, &error))?;
            }
        }
        None => {
            let of_system = rustls_native_certs::load_native_certs();
            let (taken, _ignored) = roots.add_parsable_certificates(of_system.certs);
            if taken == 0 {
                let problem = "is not set, and this system has no certificates of authorities; install \
                               ca-certificates, or set it";
                return Err(invalid("tls.ca_file", problem.to_owned()));
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("tls", format!("cannot be used: {error}")))?
        .with_root_certificates(roots);
    match (&config.certificate_file, &config.key_file) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate_file), Some(key_file)) => {
            let chain = certificates("tls.certificate_file", certificate_file)?;
            let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| {
                unusable("tls.key_file", key_file, &pem_fault(&error, "private key"))
            })?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable("tls.certificate_file", certificate_file, &error))
        }
        (Some(_), None) => Err(invalid(
            "tls.key_file",
            "is not set, tls.certificate_file is".to_owned(),
        )),
        (None, Some(_)) => Err(invalid(
            "tls.certificate_file",
            "is not set, tls.key_file is".to_owned(),
        )),
    }
}

fn certificates(field: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> =
        found.map_err(|error| unusable(field, path, &pem_fault(&error, "certificate")))?;
    if found.is_empty() {
        return Err(unusable(field, path, &"there is no certificate in it"));
    }
    Ok(found)
}

/// Without what stands in the file.
fn pem_fault(error: &pem::Error, wanted: &str) -> String {
    if let pem::Error::Io(error) = error {
        return error.to_string();
    }
    if matches!(error, pem::Error::NoItemsFound) {
        return format!("there is no {wanted} in it");
    }
    "a PEM section in it is damaged".to_owned()
}

fn unusable(field: &'static str, path: &Path, why: &dyn fmt::Display) -> Error {
    invalid(
        field,
        format!("names {}, which cannot be used: {why}", path.display()),
    )
}

fn invalid(field: &'static str, problem: String) -> Error {
    Error::InvalidConfig { field, problem }
}

/// Speaks TLS over an open connection; the broker must prove that it is `host`.
pub(crate) async fn handshake(
    connector: &TlsConnector,
    address: &Arc<str>,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>> {
    let failed = |fault, source: io::Error| Error::Tls {
        address: Arc::clone(address),
        fault,
        source: Some(Arc::new(source)),
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| failed(TlsFault::WrongName, io::Error::other(error)))?;
    connector.connect(name, stream).await.map_err(|error| {
        let fault = TlsFault::of(&error).unwrap_or(TlsFault::Closed);
        failed(fault, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_used_is_named_with_its_setting() {
        let nowhere = Some(PathBuf::from("/nonexistent/ca.pem"));
        let manifest = Some(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        for (config, setting, about) in [
            (
                TlsConfig {
                    ca_file: nowhere,
                    ..TlsConfig::default()
                },
                "tls.ca_file",
                "No such file",
            ),
            (
                TlsConfig {
                    ca_file: manifest.clone(),
                    ..TlsConfig::default()
                },
                "tls.ca_file",
                "no certificate",
            ),
            (
                TlsConfig {
                    certificate_file: manifest,
                    ..TlsConfig::default()
                },
                "tls.key_file",
                "not set",
            ),
        ] {
            let Err(Error::InvalidConfig { field, problem }) = connector(&config).await else {
                panic!("{config:?} is taken")
            };
            assert_eq!(field, setting);
            assert!(problem.contains(about), "{problem}");
        }
    }
}
