//! Who we are to the brokers: SASL with PLAIN or SCRAM.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use broker_protocol::error_code::ErrorCode;
use broker_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
};
use broker_protocol::sasl::scram::{Client, Hash};
use broker_protocol::sasl::{Fault, Mechanism, Secret, plain};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::warn;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::versions::ANY;

/// The version after which tokens travel in `SaslAuthenticate`.
const WITH_AUTHENTICATE: std::ops::RangeInclusive<i16> = 1..=1;

/// Name and password for the brokers. Of `password`, `password_file` and `password_env` exactly one is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaslConfig {
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512` (`sasl.mechanism`).
    pub mechanism: Mechanism,
    /// Name of the user (`username` of `sasl.jaas.config`).
    pub username: String,
    /// The password itself. Never written anywhere, not into a stored plan either.
    #[serde(default, skip_serializing)]
    pub password: Option<Secret>,
    /// File that holds the password and nothing else; a line end after it does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Name of the environment variable that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_env: Option<String>,
}

/// A [`SaslConfig`] whose password was read.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    mechanism: Mechanism,
    username: String,
    password: Secret,
}

impl SaslConfig {
    /// Reads the password. Cancel safe.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] without the password.
    pub(crate) async fn login(&self) -> Result<Login> {
        if self.username.is_empty() {
            return Err(invalid("sasl.username", "is empty".to_owned()));
        }
        let password = match (&self.password, &self.password_file, &self.password_env) {
            (Some(password), None, None) => password.clone(),
            (None, Some(path), None) => {
                let unusable = |why: &dyn fmt::Display| {
                    let path = path.display();
                    invalid(
                        "sasl.password_file",
                        format!("names {path}, which cannot be read: {why}"),
                    )
                };
                warn_if_open(path).await;
                let text = tokio::fs::read(path)
                    .await
                    .map_err(|error| unusable(&error))?;
                let text = String::from_utf8(text).map_err(|_| unusable(&"it is not UTF-8"))?;
                Secret::new(text.trim_end_matches(['\r', '\n']))
            }
            (None, None, Some(name)) => {
                let value = std::env::var(name);
                Secret::new(value.map_err(|_| {
                    let problem = format!("names {name}, which is not set or not UTF-8");
                    invalid("sasl.password_env", problem)
                })?)
            }
            (None, None, None) => {
                let problem = "is not set, nor are password_file and password_env; a stored plan never holds \
                               the password itself";
                return Err(invalid("sasl.password", problem.to_owned()));
            }
            _ => {
                let problem =
                    "is set beside password_file or password_env, or both of these are: one only";
                return Err(invalid("sasl.password", problem.to_owned()));
            }
        };
        if password.expose().is_empty() || password.expose().contains('\0') {
            let problem = "is empty or holds a NUL".to_owned();
            return Err(invalid("sasl.password", problem));
        }
        Ok(Login {
            mechanism: self.mechanism,
            username: self.username.clone(),
            password,
        })
    }
}

/// A password that others on the machine can read is said, not refused: it may be meant so.
async fn warn_if_open(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    if let Ok(found) = tokio::fs::metadata(path).await
        && found.permissions().mode() & 0o077 != 0
    {
        warn!(path = %path.display(), "others than the owner may read this file: chmod 600");
    }
}

fn invalid(field: &'static str, problem: String) -> Error {
    Error::InvalidConfig { field, problem }
}

impl Login {
    /// Authenticates a fresh connection. Cancel safe: the connection is of no use afterwards.
    ///
    /// # Errors
    /// [`Error::NotAuthenticated`], [`Error::MechanismNotOffered`], [`Error::Sasl`]; or the connection fails.
    pub(crate) async fn authenticate(
        &self,
        connection: &Connection,
        deadline: Instant,
    ) -> Result<()> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let mechanism = self.mechanism;
        let request = |_| SaslHandshakeRequest {
            mechanism: mechanism.name().into(),
        };
        let answer = connection.call(&WITH_AUTHENTICATE, left(), request).await?;
        let code = ErrorCode::from_i16(answer.error_code);
        if code == ErrorCode::UnsupportedSaslMechanism {
            let offered: Vec<&str> = answer.mechanisms.iter().map(|name| &**name).collect();
            return Err(Error::MechanismNotOffered {
                address: Arc::clone(connection.address()),
                mechanism,
                offered: offered.join(", ").into(),
            });
        }
        if !code.is_ok() {
            return Err(self.refused(connection, code.to_string().into()));
        }
        match mechanism.scram() {
            None => {
                let token = plain::encode(&self.username, &self.password);
                self.exchange(connection, left(), &token).await?;
            }
            Some(hash) => self.scram(connection, hash, deadline).await?,
        }
        Ok(())
    }

    async fn scram(&self, connection: &Connection, hash: Hash, deadline: Instant) -> Result<()> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let failed = |source: Fault| Error::Sasl {
            address: Arc::clone(connection.address()),
            mechanism: self.mechanism,
            source,
        };
        let (client, first) = Client::begin(hash, &self.username).map_err(failed)?;
        let challenge = self.exchange(connection, left(), &first).await?;
        let password = self.password.clone();
        // Thousands of hashes: not on a thread that others wait for.
        let proving = tokio::task::spawn_blocking(move || client.prove(&password, &challenge));
        let proved = tokio::time::timeout_at(deadline, proving).await;
        let no_time = || Error::NoAnswer {
            address: Arc::clone(connection.address()),
            operation: "SCRAM",
            after: left(),
        };
        let proved = proved.map_err(|_| no_time())?.map_err(|_| Error::Closed)?;
        let (proven, last) = proved.map_err(failed)?;
        let signature = self.exchange(connection, left(), &last).await?;
        proven.check(&signature).map_err(failed)
    }

    /// One token each way.
    async fn exchange(
        &self,
        connection: &Connection,
        limit: std::time::Duration,
        token: &[u8],
    ) -> Result<Bytes> {
        let request = |_| SaslAuthenticateRequest {
            auth_bytes: Bytes::copy_from_slice(token),
        };
        let SaslAuthenticateResponse {
            error_code,
            error_message,
            auth_bytes,
            ..
        } = connection.call(&ANY, limit, request).await?;
        let code = ErrorCode::from_i16(error_code);
        if code.is_ok() {
            return Ok(auth_bytes);
        }
        let message = error_message.filter(|text| !text.is_empty());
        let message = message.map_or_else(|| code.to_string().into(), |text| (&*text).into());
        Err(self.refused(connection, message))
    }

    fn refused(&self, connection: &Connection, message: Box<str>) -> Error {
        Error::NotAuthenticated {
            address: Arc::clone(connection.address()),
            mechanism: self.mechanism,
            username: self.username.as_str().into(),
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SaslConfig {
        SaslConfig {
            mechanism: Mechanism::ScramSha512,
            username: "alice".to_owned(),
            password: None,
            password_file: None,
            password_env: None,
        }
    }

    #[tokio::test]
    async fn the_password_comes_from_one_place_and_is_shown_nowhere() {
        let folder = std::env::temp_dir().join(uuid::Uuid::new_v4().to_string());
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("password");
        std::fs::write(&path, " hunter2 \n").unwrap();
        let from_file = SaslConfig {
            password_file: Some(path),
            ..config()
        };
        let login = from_file.login().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(login.password.expose(), " hunter2 ");
        let inline = SaslConfig {
            password: Some(Secret::new("hunter2")),
            ..config()
        };
        let shown = format!("{login:?} {inline:?} {:?}", inline.login().await.unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        let twice = SaslConfig {
            password: Some(Secret::new("hunter2")),
            ..from_file
        };
        for bad in [config(), twice] {
            let error = bad.login().await.unwrap_err().to_string();
            assert!(
                error.contains("sasl.password") && !error.contains("hunter2"),
                "{error}"
            );
        }
        let unset = SaslConfig {
            password_env: Some("LOGFERRY_TEST_NO_SUCH_VARIABLE".to_owned()),
            ..config()
        };
        let error = unset.login().await.unwrap_err().to_string();
        assert!(error.contains("LOGFERRY_TEST_NO_SUCH_VARIABLE"), "{error}");
    }
}
