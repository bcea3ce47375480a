//! Certificates for tests of TLS, made anew for each test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    date_time_ymd,
};

/// Somebody who signs certificates, with a folder for the files.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// A certificate and its key, as PEM files.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate_file: PathBuf,
    /// Its key, PKCS#8; for its owner only.
    pub key_file: PathBuf,
}

impl Authority {
    /// A new one, which nobody knows yet; its own certificate goes into the folder of this name as `ca.pem`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn new(folder: &Path, name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = named(&[(DnType::CommonName, name)]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)?,
            folder: folder.join(name),
        };
        fs::create_dir_all(&authority.folder)?;
        fs::write(authority.ca_file(), authority.issuer.pem())?;
        Ok(authority)
    }

    /// Where its own certificate is.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A certificate for hosts, names or addresses.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn host(&self, name: &str, hosts: &[&str]) -> Result<Identity> {
        self.sign(name, hosts, false)
    }

    /// A certificate for hosts that was good until 2020.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn expired_host(&self, name: &str, hosts: &[&str]) -> Result<Identity> {
        self.sign(name, hosts, true)
    }

    /// A certificate for a client, with the subject `CN=name,O=Test`.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn client(&self, name: &str) -> Result<Identity> {
        self.sign(name, &[], false)
    }

    fn sign(&self, name: &str, hosts: &[&str], expired: bool) -> Result<Identity> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name = named(&[
            (DnType::OrganizationName, "Test"),
            (DnType::CommonName, name),
        ]);
        if expired {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let identity = Identity {
            certificate_file: self.folder.join(format!("{name}.pem")),
            key_file: self.folder.join(format!("{name}.key")),
        };
        fs::write(&identity.certificate_file, certificate.pem())?;
        write_private(&identity.key_file, &key.serialize_pem())?;
        Ok(identity)
    }
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

fn named(parts: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, text) in parts {
        name.push(kind.clone(), *text);
    }
    name
}
