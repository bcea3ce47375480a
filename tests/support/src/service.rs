//! What the services have in common: one helper JVM each, and the note by which a test finds a service that
//! another process started.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::java::{Answer, Helper};

/// The file in a service's folder that describes it.
const NOTE: &str = "service.json";

pub(crate) fn write_note(folder: &Path, note: &Value) -> Result<()> {
    Ok(fs::write(
        folder.join(NOTE),
        serde_json::to_vec_pretty(note)?,
    )?)
}

/// Reads the note of a running service, and takes `field` of it.
pub(crate) fn read_note(folder: &Path, field: &str) -> Result<String> {
    let path = folder.join(NOTE);
    let text = fs::read(&path).with_context(|| format!("no service at {}", path.display()))?;
    let note: Value = serde_json::from_slice(&text)?;
    let value = note.get(field).and_then(Value::as_str);
    value
        .map(str::to_owned)
        .with_context(|| format!("no {field} in {}", path.display()))
}

/// The folder that the environment variable names, if it is set.
pub(crate) fn folder_from(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// A helper JVM that is started for the first command and again after one that went wrong.
#[derive(Debug, Default)]
pub(crate) struct LazyHelper(Mutex<Option<Helper>>);

impl LazyHelper {
    pub(crate) fn call(
        &self,
        arguments: &[&str],
        start: impl FnOnce() -> Result<Helper>,
    ) -> Result<Answer> {
        // A panic in between leaves at worst a helper that is replaced below.
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut helper = match slot.take() {
            Some(helper) => helper,
            None => start()?,
        };
        let answer = helper.call(arguments)?;
        *slot = Some(helper);
        Ok(answer)
    }

    /// Ends the helper, and with it its connections and open transactions.
    pub(crate) fn stop(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
