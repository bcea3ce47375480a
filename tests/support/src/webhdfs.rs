//! The files of an HDFS by HTTP (`/webhdfs/v1`): a look that goes past all proxies and needs no JVM of its own.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::net::http;

/// Reads an HDFS's files by HTTP. An error is a server that does not answer or is not well: it says nothing about
/// the files.
#[derive(Debug, Clone)]
pub struct WebHdfs {
    port: u16,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebEntry {
    /// Name within the directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Length; 0 for a directory.
    pub len: u64,
}

impl WebHdfs {
    pub(crate) const fn new(port: u16) -> Self {
        Self { port }
    }

    /// The entries of a directory; none if there is no such path.
    ///
    /// # Errors
    /// If the NameNode cannot be asked now.
    pub fn list(&self, path: &str) -> Result<Option<Vec<WebEntry>>> {
        let Some(text) = self.get(self.port, &format!("{path}?op=LISTSTATUS"))? else {
            return Ok(None);
        };
        let answer: Value = serde_json::from_str(&text)?;
        let found = answer.pointer("/FileStatuses/FileStatus");
        let found = found
            .and_then(Value::as_array)
            .context("no list of files")?;
        found.iter().map(entry).collect::<Result<_>>().map(Some)
    }

    /// The text of a file; none if there is no such path.
    ///
    /// # Errors
    /// If the NameNode cannot be asked now, or the DataNode that it names does not answer.
    pub fn read(&self, path: &str) -> Result<Option<String>> {
        let Some(text) = self.get(self.port, &format!("{path}?op=OPEN&noredirect=true"))? else {
            return Ok(None);
        };
        let answer: Value = serde_json::from_str(&text)?;
        let location = answer.get("Location").and_then(Value::as_str);
        let location = location.context("no location")?;
        // http://host:port/webhdfs/v1/…
        let after = location.split_once("//").context("no address")?.1;
        let (authority, rest) = after.split_once('/').context("no path")?;
        let port = authority.rsplit(':').next().context("no port")?.parse()?;
        let path = rest.strip_prefix("webhdfs/v1").context("another path")?;
        self.get(port, path)
    }

    fn get(&self, port: u16, path: &str) -> Result<Option<String>> {
        let user = if path.contains("user.name=") {
            ""
        } else {
            "&user.name=root"
        };
        let (status, body) = http(port, &format!("/webhdfs/v1{path}{user}"))?;
        if status == 404 && body.contains("FileNotFoundException") {
            return Ok(None);
        }
        ensure!(status == 200, "{path}: {status} {body}");
        Ok(Some(body))
    }
}

fn entry(status: &Value) -> Result<WebEntry> {
    let text = |field: &str| status.get(field).and_then(Value::as_str);
    Ok(WebEntry {
        name: text("pathSuffix").context("no name")?.to_owned(),
        is_directory: text("type") == Some("DIRECTORY"),
        len: status
            .get("length")
            .and_then(Value::as_u64)
            .context("no length")?,
    })
}
