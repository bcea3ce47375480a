//! Who may talk to the broker, and how: listeners, TLS, SASL.
//!
//! ```text
//!  listener ─► TLS handshake ─► SASL exchange ─► requests, in the name of a Principal
//!               tls               session, users
//! ```
//!
//! Both steps share one deadline, `authentication_timeout`, and happen in the connection's own task. Nothing of
//! a token, a password or a key reaches a log or an answer; a client that fails is not told which part was wrong.
//! Certificates, keys and users are read again when their files change ([`Security::refresh`]).

pub(crate) mod config;
pub(crate) mod session;
mod tls;
mod users;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use tracing::{info, warn};

use crate::{
    config::Config,
    error::Error,
    security::{config::SecurityProtocol, tls::Tls, users::Users},
};

pub(crate) use session::Session;
pub(crate) use tls::subject;

/// At most one warning about failed authentication in this time; the others are counted.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Why a file of certificates, keys or users is not usable. Nothing of its content is in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// It cannot be read.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// A section of it is damaged.
    #[error("a PEM section in it is damaged")]
    NotPem,
    /// It has no certificate.
    #[error("there is no certificate in it")]
    NoCertificate,
    /// It has no private key.
    #[error("there is no private key in it (PKCS#8, PKCS#1 or SEC1, not encrypted)")]
    NoKey,
    /// Certificate, key or authority cannot be used.
    #[error("it cannot be used for TLS")]
    Tls(#[source] tokio_rustls::rustls::Error),
    /// The certificates that clients are checked by cannot be used.
    #[error("it cannot be used to check clients: {0}")]
    ClientCa(String),
    /// A line, counted from 1, says no user.
    #[error("line {line}: {what}")]
    Line {
        /// Its number.
        line: usize,
        /// What is wrong, without what stands there.
        what: String,
    },
    /// The system gives no random bytes for salts.
    #[error("the system gives no random bytes")]
    NoRandom,
}

/// Who a connection speaks for: Kafka's `User:NAME`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Principal(Arc<str>);

impl Principal {
    /// By SASL name, or by the subject of a client's certificate.
    pub(crate) fn user(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// Nobody in particular.
    pub(crate) fn anonymous() -> Self {
        Self::user("ANONYMOUS")
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User:{}", self.0)
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What was read of the files, and who failed lately.
#[derive(Debug)]
pub(crate) struct Security {
    tls: Option<Tls>,
    users: Option<Users>,
    failures: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    warned: Option<Instant>,
    unsaid: u64,
}

impl Security {
    /// Reads every file that the configuration names. Blocks.
    ///
    /// # Errors
    /// [`Error::Security`] naming the first that cannot be used.
    pub(crate) fn open(config: &Config) -> Result<Self, Error> {
        let uses = |wanted: fn(SecurityProtocol) -> bool| {
            let listeners = config.all_listeners();
            listeners.iter().any(|listener| wanted(listener.protocol))
        };
        let tls = config
            .tls
            .as_ref()
            .filter(|_| uses(SecurityProtocol::has_tls));
        let sasl = config
            .sasl
            .as_ref()
            .filter(|_| uses(SecurityProtocol::has_sasl));
        Ok(Self {
            tls: tls.map(Tls::open).transpose()?,
            users: sasl.map(Users::open).transpose()?,
            failures: Mutex::default(),
        })
    }

    /// Says what an operator should know of before clients come.
    pub(crate) fn warn_at_start(&self, config: &Config) {
        for listener in config.all_listeners() {
            let name = &listener.name;
            let plain = config.sasl.as_ref().is_some_and(|sasl| sasl.offers_plain());
            if listener.protocol == SecurityProtocol::SaslPlaintext && plain {
                warn!(listener = %name, "passwords cross the network as they are: PLAIN without TLS");
            }
        }
        let users = self.users.as_ref().and_then(Users::file);
        let key = self.tls.as_ref().map(Tls::key_file);
        for path in users.into_iter().chain(key) {
            if is_open_to_others(path) {
                warn!(path = %path.display(), "others than the owner may read this file: chmod 600");
            }
        }
    }

    /// Whether anything was read of files.
    pub(crate) const fn has_files(&self) -> bool {
        self.tls.is_some() || self.users.is_some()
    }

    /// What accepts TLS; none where the configuration has no listener with it.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Who may authenticate; none where the configuration has no listener with SASL.
    pub(crate) fn users(&self) -> Option<&Users> {
        self.users.as_ref()
    }

    /// Looks at the files, and reads those again that have changed. What cannot be read or used is left as it
    /// was, with a warning, until it changes again. Blocks.
    pub(crate) fn refresh(&self) {
        let tls = self.tls.as_ref().map(Tls::refresh);
        let users = self.users.as_ref().map(Users::refresh);
        for (what, refreshed) in [("certificates", tls), ("users", users)] {
            match refreshed {
                None | Some(Ok(false)) => {}
                Some(Ok(true)) => info!("{what} read again"),
                Some(Err(error)) => warn!(
                    error = &error as &dyn std::error::Error,
                    "{what} not read again, those from before stay"
                ),
            }
        }
    }

    /// Tells of a client that was not let in, at most every ten seconds.
    pub(crate) fn note_failure(&self, peer: std::net::SocketAddr, listener: &str, reason: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let due = failures
            .warned
            .is_none_or(|last| last.elapsed() >= WARN_INTERVAL);
        if !due {
            failures.unsaid += 1;
            return;
        }
        let others = std::mem::take(&mut failures.unsaid);
        failures.warned = Some(Instant::now());
        drop(failures);
        warn!(%peer, listener, reason, others, "client not let in");
    }
}

/// How a file looks from outside: another stamp means another content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp(Option<(SystemTime, u64, u64)>);

impl Stamp {
    fn of(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;
        let seen = std::fs::metadata(path)
            .and_then(|found| Ok((found.modified()?, found.len(), found.ino())));
        Self(seen.ok())
    }

    pub(crate) fn all<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<Self> {
        paths.into_iter().map(|path| Self::of(path)).collect()
    }
}

fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

fn unusable(path: &Path, source: FileFault) -> Error {
    Error::Security {
        path: path.to_owned(),
        source,
    }
}
