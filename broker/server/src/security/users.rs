//! Who may authenticate by SASL, and by what.
//!
//! The file has a line a user, `user = password`; blank lines and those that begin with `#` are skipped. Blanks
//! around the first `=` and at the line's ends do not count. Instead of a password a line may hold a SCRAM
//! credential as Kafka's tools print it, `user = SCRAM-SHA-256=[salt=…,stored_key=…,server_key=…,iterations=…]`;
//! a user may have a line for each mechanism. Of a password only what checks it is kept.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use broker_protocol::sasl::{
    Mechanism, plain, random,
    scram::{Credential, Hash},
};
use zeroize::Zeroizing;

use super::{FileFault, Stamp, config::SaslConfig, unusable};
use crate::error::Error;

/// Everybody who may authenticate.
#[derive(Debug)]
pub(crate) struct Users {
    config: SaslConfig,
    /// Makes the salts of users who do not exist; changes with each start.
    seed: Zeroizing<[u8; 32]>,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    seen: Vec<Stamp>,
    users: Arc<HashMap<String, User>>,
}

#[derive(Debug, Default)]
struct User {
    plain: Option<plain::Stored>,
    sha256: Option<Credential>,
    sha512: Option<Credential>,
}

impl Users {
    /// Reads the users. Blocks: a password costs some milliseconds for each SCRAM mechanism.
    pub(super) fn open(config: &SaslConfig) -> Result<Self, Error> {
        let path = config.users_file.clone().unwrap_or_default();
        let seed = random().map_err(|_| unusable(&path, FileFault::NoRandom))?;
        Ok(Self {
            current: RwLock::new(read(config)?),
            seed: Zeroizing::new(seed),
            config: config.clone(),
        })
    }

    /// Where they are read from.
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.users_file.as_deref()
    }

    /// As configured.
    pub(crate) const fn config(&self) -> &SaslConfig {
        &self.config
    }

    /// Reads the file again if it has changed, and says whether. Who is connected stays.
    pub(super) fn refresh(&self) -> Result<bool, Error> {
        let seen = Stamp::all(&self.config.users_file);
        let lock = || self.current.write().unwrap_or_else(PoisonError::into_inner);
        if lock().seen == seen {
            return Ok(false);
        }
        // Whatever comes of it, this file is not tried again until it changes.
        lock().seen = seen;
        let read = read(&self.config)?;
        *lock() = read;
        Ok(true)
    }

    /// Whether the user exists and this is the password.
    pub(crate) fn has_password(&self, username: &str, password: &str) -> bool {
        let users = self.users();
        let stored = users.get(username).and_then(|user| user.plain.as_ref());
        stored.is_some_and(|stored| stored.matches(password))
    }

    /// What the user's proof is checked by. For one who does not exist, something that no proof fits: the
    /// exchange goes on and fails as with a wrong password.
    pub(crate) fn credential(&self, hash: Hash, username: &str) -> Credential {
        let users = self.users();
        let stored = users.get(username).and_then(|user| match hash {
            Hash::Sha256 => user.sha256.clone(),
            Hash::Sha512 => user.sha512.clone(),
        });
        stored.unwrap_or_else(|| Credential::impossible(hash, &self.seed, username))
    }

    fn users(&self) -> Arc<HashMap<String, User>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current.users)
    }
}

fn read(config: &SaslConfig) -> Result<Current, Error> {
    let seen = Stamp::all(&config.users_file);
    let mut users = HashMap::new();
    if let Some(path) = &config.users_file {
        let text = fs::read_to_string(path)
            .map(Zeroizing::new)
            .map_err(|error| unusable(path, FileFault::Unreadable(error)))?;
        for (index, line) in text.lines().enumerate() {
            add_line(&mut users, config, line).map_err(|what| {
                let line = index + 1;
                unusable(path, FileFault::Line { line, what })
            })?;
        }
    }
    for (name, secret) in &config.users {
        add(&mut users, config, name, secret.expose()).map_err(|what| {
            let place = PathBuf::from(format!("broker.sasl.users.{name}"));
            unusable(&place, FileFault::Line { line: 1, what })
        })?;
    }
    Ok(Current {
        seen,
        users: Arc::new(users),
    })
}

fn add_line(
    users: &mut HashMap<String, User>,
    config: &SaslConfig,
    line: &str,
) -> Result<(), String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(());
    }
    let (name, secret) = line.split_once('=').ok_or("it is not `user = password`")?;
    add(users, config, name.trim(), secret.trim())
}

/// Adds what a user authenticates by, for each mechanism on offer. Errors never hold the secret.
fn add(
    users: &mut HashMap<String, User>,
    config: &SaslConfig,
    name: &str,
    secret: &str,
) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    if secret.is_empty() {
        return Err(format!("user {name} has no password"));
    }
    let user = users.entry(name.to_owned()).or_default();
    for mechanism in [Mechanism::ScramSha256, Mechanism::ScramSha512] {
        let prefix = [mechanism.name(), "="].concat();
        let (Some(text), Some(hash)) = (secret.strip_prefix(&prefix), mechanism.scram()) else {
            continue;
        };
        let read = Credential::parse(hash, text).map_err(|bad| format!("user {name}: {bad}"))?;
        return user.set(mechanism, read, name);
    }
    if user.plain.is_some() || user.sha256.is_some() || user.sha512.is_some() {
        return Err(format!("user {name} is there twice"));
    }
    let no_random = |_| "the system gives no random bytes".to_owned();
    for mechanism in &config.mechanisms {
        match mechanism.scram() {
            None => user.plain = Some(plain::Stored::new(secret).map_err(no_random)?),
            Some(hash) => {
                let derived = Credential::new(hash, secret).map_err(no_random)?;
                user.set(*mechanism, derived, name)?;
            }
        }
    }
    Ok(())
}

impl User {
    fn set(&mut self, mechanism: Mechanism, found: Credential, name: &str) -> Result<(), String> {
        let place = if mechanism == Mechanism::ScramSha256 {
            &mut self.sha256
        } else {
            &mut self.sha512
        };
        if place.replace(found).is_some() {
            return Err(format!("user {name} is there twice for {mechanism}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> (tempfile::TempDir, SaslConfig) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, text).unwrap();
        let config = SaslConfig {
            mechanisms: Mechanism::ALL.to_vec(),
            users_file: Some(path),
            ..SaslConfig::default()
        };
        (folder, config)
    }

    #[test]
    fn users_are_read_and_read_again() {
        let (_folder, config) = config("# people\n\n alice = pass = word \nbob=x\n");
        let users = Users::open(&config).unwrap();
        assert!(users.has_password("alice", "pass = word"));
        assert!(!users.has_password("alice", "pass = word "));
        assert!(!users.has_password("carol", "x"));
        assert!(!users.refresh().unwrap(), "nothing has changed");
        let path = config.users_file.as_ref().unwrap();
        fs::write(path, "alice = another one").unwrap();
        assert!(users.refresh().unwrap());
        assert!(!users.has_password("alice", "pass = word"));
        assert!(users.has_password("alice", "another one"));
        fs::write(path, "alice").unwrap();
        assert!(users.refresh().is_err());
        assert!(
            users.has_password("alice", "another one"),
            "those from before stay"
        );
        assert!(
            !users.refresh().unwrap(),
            "not tried again until it changes"
        );
    }

    #[test]
    fn a_bad_line_is_named_without_its_secret() {
        let scram = "SCRAM-SHA-256=[salt=hunter2]";
        for (text, line, about) in [
            ("a = b\nhunter2\n", 2, "user = password"),
            ("= hunter2", 1, "name is empty"),
            ("a =", 1, "no password"),
            ("a = hunter1\n# b\na = hunter2", 3, "twice"),
            (&format!("a = {scram}"), 1, "SCRAM"),
        ] {
            let (_folder, config) = config(text);
            let error = Users::open(&config).unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.starts_with(&format!("line {line}: ")), "{source}");
            assert!(
                source.contains(about) && !source.contains("hunter"),
                "{source}"
            );
        }
    }
}
