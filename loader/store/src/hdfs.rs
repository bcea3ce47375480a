//! A store on HDFS, by way of the crate hdfs-native.
//!
//! What is added to hdfs-native: a time limit on every request (it has none), errors by kind, no
//! parents made behind the caller's back, Hadoop's umask, and a new connection after a NameNode has
//! stopped answering. Requests that change something are never repeated here; hdfs-native repeats
//! them only when the NameNode did not take them (refused connection, standby).

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use hdfs_native::client::FileStatus;
use hdfs_native::{Client, ClientBuilder, HdfsError, WriteOptions};

use crate::local::blocking;
use crate::{
    Entry, EntryKind, Error, FileWriter, Operation, RenameSemantics, Result, Store, StoreConfig,
    StorePath,
};

mod conf;
mod errors;
mod writer;

use conf::{Cluster, HadoopConf};
use errors::{Failure, Request};
use writer::HdfsWriter;

/// One HDFS: a NameNode, or a name service with several.
#[derive(Debug)]
pub struct HdfsStore {
    settings: Arc<Settings>,
    connection: RwLock<Connection>,
}

/// What a client is made of, to make another.
#[derive(Debug)]
struct Settings {
    conf: HadoopConf,
    cluster: Cluster,
    user: Option<String>,
    timeout: Duration,
    file_mode: u32,
    directory_mode: u32,
    replication: Option<u32>,
    block_size: Option<u64>,
}

#[derive(Clone, Debug)]
struct Connection {
    client: Client,
    generation: u64,
}

impl Settings {
    fn load(location: &str, authority: Option<&str>, config: &StoreConfig) -> Result<Self> {
        let conf = HadoopConf::load(config)?;
        let umask = conf.umask()?;
        Ok(Self {
            cluster: conf.cluster(location, authority)?,
            user: config.hadoop_user.clone(),
            timeout: config.operation_timeout,
            file_mode: 0o666 & !umask,
            directory_mode: 0o777 & !umask,
            replication: conf.replication()?,
            block_size: conf.block_size()?,
            conf,
        })
    }

    /// Reads the files again and asks Kerberos who we are; connects to nothing.
    fn client(&self, reconnecting: bool) -> Result<Client, HdfsError> {
        let mut builder = ClientBuilder::new()
            .with_url(format!("hdfs://{}", self.cluster.authority))
            .with_config(self.conf.overrides(&self.cluster, reconnecting));
        if let Some(dir) = self.conf.dir() {
            builder = builder.with_config_dir(dir.to_string_lossy());
        }
        if let Some(user) = &self.user {
            builder = builder.with_user(user);
        }
        builder.build()
    }

    fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default()
            .create_parent(false)
            .permission(self.file_mode);
        options.replication = self.replication;
        options.block_size = self.block_size;
        options
    }
}

impl HdfsStore {
    /// The HDFS at `authority` (`host`, `host:port` or a name service), or of `fs.defaultFS`.
    /// Connects with the first request. `location` is for error messages.
    ///
    /// # Errors
    /// [`Error::Location`], [`Error::HadoopConfig`].
    pub async fn open(
        location: &str,
        authority: Option<&str>,
        config: &StoreConfig,
    ) -> Result<Self> {
        let (config, location) = (config.clone(), location.to_owned());
        let authority = authority.map(str::to_owned);
        blocking(Operation::Open, &StorePath::root(), move || {
            let settings = Settings::load(&location, authority.as_deref(), &config)?;
            let client = settings.client(false).map_err(|e| Error::Location {
                location,
                reason: e.to_string(),
            })?;
            let connection = RwLock::new(Connection {
                client,
                generation: 0,
            });
            Ok(Self {
                settings: Arc::new(settings),
                connection,
            })
        })
        .await
    }

    fn connection(&self) -> Connection {
        self.connection
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Gives up the connection of `generation` after a time-out: if its NameNode's machine is gone,
    /// the kernel would go on trying it for a quarter of an hour. Open files keep theirs.
    async fn reconnect(&self, path: &StorePath, generation: u64) {
        let settings = Arc::clone(&self.settings);
        let client = blocking(Operation::Open, path, move || Ok(settings.client(true))).await;
        match client {
            Ok(Ok(client)) => {
                let mut current = self
                    .connection
                    .write()
                    .unwrap_or_else(PoisonError::into_inner);
                if current.generation == generation {
                    *current = Connection {
                        client,
                        generation: generation.saturating_add(1),
                    };
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot set up a new connection to hdfs"),
            Err(error) => tracing::warn!(%error, "cannot set up a new connection to hdfs"),
        }
    }

    fn request<'a>(&'a self, operation: Operation, path: &'a StorePath) -> Request<'a> {
        Request {
            operation,
            path,
            address: &self.settings.cluster.address,
        }
    }

    /// Asks the NameNode, under the time limit.
    async fn ask<T, Answer>(
        &self,
        path: &StorePath,
        request: impl FnOnce(Client) -> Answer + Send,
    ) -> Result<T, Failure>
    where
        Answer: Future<Output = Result<T, HdfsError>> + Send,
    {
        let Connection { client, generation } = self.connection();
        match tokio::time::timeout(self.settings.timeout, request(client)).await {
            Ok(answer) => answer.map_err(Failure::Hdfs),
            Err(_) => {
                self.reconnect(path, generation).await;
                Err(Failure::NoAnswer(self.settings.timeout))
            }
        }
    }

    async fn create_as(
        &self,
        operation: Operation,
        file: &StorePath,
        overwrite: bool,
    ) -> Result<HdfsWriter> {
        let options = self.settings.write_options().overwrite(overwrite);
        let native = self
            .ask(file, |client| async move {
                client.create(file.as_str(), &options).await
            })
            .await
            .map_err(|failure| self.request(operation, file).error(failure))?;
        let address = self.settings.cluster.address.clone();
        Ok(HdfsWriter::new(
            file.clone(),
            address,
            self.settings.timeout,
            native,
        ))
    }

    async fn write_whole(
        &self,
        operation: Operation,
        file: &StorePath,
        content: Bytes,
        overwrite: bool,
    ) -> Result<()> {
        let mut writer = Box::new(self.create_as(operation, file, overwrite).await?);
        writer.write(content).await?;
        writer.close().await.map(drop)
    }

    async fn mkdirs_as(
        &self,
        operation: Operation,
        directory: &StorePath,
        create_parent: bool,
    ) -> Result<()> {
        let mode = self.settings.directory_mode;
        self.ask(directory, |client| async move {
            client.mkdirs(directory.as_str(), mode, create_parent).await
        })
        .await
        .map_err(|failure| self.request(operation, directory).error(failure))
    }
}

fn entry(path: StorePath, status: &FileStatus) -> Entry {
    Entry {
        path,
        kind: if status.isdir {
            EntryKind::Directory
        } else {
            EntryKind::File
        },
        len: status.length as u64,
        modified_ms: i64::try_from(status.modification_time).unwrap_or(i64::MAX),
    }
}

#[async_trait]
impl Store for HdfsStore {
    fn describe(&self) -> String {
        format!("hdfs://{}", self.settings.cluster.authority)
    }

    fn uri(&self, path: &StorePath) -> String {
        format!("hdfs://{}{path}", self.settings.cluster.authority)
    }

    fn rename_semantics(&self) -> RenameSemantics {
        RenameSemantics {
            atomic_directory_rename: true,
            never_overwrites: true,
            seen_is_durable: true,
        }
    }

    async fn stat(&self, path: &StorePath) -> Result<Option<Entry>> {
        let status = self
            .ask(path, |client| async move {
                client.get_file_info(path.as_str()).await
            })
            .await
            .map_err(|failure| self.request(Operation::Stat, path).error(failure));
        match status {
            Ok(status) => Ok(Some(entry(path.clone(), &status))),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    async fn list(&self, directory: &StorePath) -> Result<Vec<Entry>> {
        // Asks for a page (1,000 entries by default) when it has handed out the one before; the time
        // limit holds for each.
        let pages = Arc::new(
            self.connection()
                .client
                .list_status_iter(directory.as_str(), false),
        );
        let mut entries = Vec::new();
        loop {
            let pages = Arc::clone(&pages);
            let next = self
                .ask(directory, |_| async move { pages.next().await.transpose() })
                .await
                .map_err(|failure| self.request(Operation::List, directory).error(failure))?;
            let Some(status) = next else { break };
            if status.path == directory.as_str() {
                // Asked to list a file, HDFS lists the file.
                return Err(Error::NotADirectory {
                    path: directory.clone(),
                });
            }
            let name = status.path.rsplit('/').next().unwrap_or_default();
            let path = directory.try_join(name).map_err(|e| Error::InvalidPath {
                path: status.path.clone(),
                reason: e.to_string(),
            })?;
            entries.push(entry(path, &status));
        }
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    async fn mkdir(&self, directory: &StorePath) -> Result<()> {
        // HDFS takes an existing directory for success, so look first. See the trait for the race.
        if self.stat(directory).await?.is_some() {
            return Err(Error::AlreadyExists {
                path: directory.clone(),
            });
        }
        self.mkdirs_as(Operation::Mkdir, directory, false).await
    }

    async fn mkdirs(&self, directory: &StorePath) -> Result<()> {
        self.mkdirs_as(Operation::Mkdirs, directory, true).await
    }

    async fn create(&self, file: &StorePath) -> Result<Box<dyn FileWriter>> {
        Ok(Box::new(
            self.create_as(Operation::Create, file, false).await?,
        ))
    }

    async fn put(&self, file: &StorePath, content: Bytes) -> Result<()> {
        self.write_whole(Operation::Put, file, content, false).await
    }

    async fn replace(&self, file: &StorePath, content: Bytes) -> Result<()> {
        self.write_whole(Operation::Replace, file, content, true)
            .await
    }

    async fn read(&self, file: &StorePath) -> Result<Bytes> {
        self.read_range(file, 0..u64::MAX).await
    }

    async fn read_range(&self, file: &StorePath, range: Range<u64>) -> Result<Bytes> {
        let request = self.request(Operation::Read, file);
        let reader = self
            .ask(
                file,
                |client| async move { client.read(file.as_str()).await },
            )
            .await
            .map_err(|failure| request.error(failure))?;
        let len = reader.file_length();
        let start = usize::try_from(range.start).unwrap_or(usize::MAX).min(len);
        let end = usize::try_from(range.end)
            .unwrap_or(usize::MAX)
            .min(len)
            .max(start);
        let mut packets = std::pin::pin!(reader.read_range_stream(start, end - start));
        let mut content = BytesMut::with_capacity(end - start);
        let limit = self.settings.timeout;
        loop {
            let failure = match tokio::time::timeout(limit, packets.next()).await {
                Ok(Some(Ok(packet))) => {
                    content.extend_from_slice(&packet);
                    continue;
                }
                Ok(None) => break,
                Ok(Some(Err(error))) => Failure::Hdfs(error),
                Err(_) => Failure::NoAnswer(limit),
            };
            return Err(request.read_error(failure));
        }
        if content.len() != end - start {
            let reason = format!("{} bytes came of {}", content.len(), end - start);
            let failure = Failure::Hdfs(HdfsError::DataTransferError(reason));
            return Err(request.read_error(failure));
        }
        Ok(content.freeze())
    }

    async fn rename_no_overwrite(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        if from != to && to.starts_with(from) {
            let reason = format!("{from} cannot be moved below itself");
            return Err(Error::InvalidPath {
                path: to.to_string(),
                reason,
            });
        }
        let renamed = self
            .ask(to, |client| async move {
                client.rename(from.as_str(), to.as_str(), false).await
            })
            .await;
        let Err(failure) = renamed else { return Ok(()) };
        let between_zones = matches!(&failure, Failure::Hdfs(HdfsError::RPCError(_, text))
            if text.contains("encryption zone"));
        let error = self.request(Operation::Rename, to).error(failure);
        // Which of the two lies below a file, it does not say.
        if matches!(error, Error::NotFound { .. })
            || matches!(error, Error::NotADirectory { .. }) && self.stat(from).await?.is_none()
        {
            return Err(Error::NotFound { path: from.clone() });
        }
        if between_zones && matches!(error, Error::Io { .. }) {
            return Err(Error::CrossVolume {
                from: from.clone(),
                to: to.clone(),
            });
        }
        Err(error)
    }

    async fn delete(&self, path: &StorePath) -> Result<bool> {
        if *path == StorePath::root() {
            let reason = "the root of a file system is not deleted".to_owned();
            return Err(Error::InvalidPath {
                path: path.to_string(),
                reason,
            });
        }
        let deleted = self
            .ask(path, |client| async move {
                client.delete(path.as_str(), true).await
            })
            .await
            .map_err(|failure| self.request(Operation::Delete, path).error(failure));
        match deleted {
            Err(Error::NotFound { .. }) => Ok(false),
            other => other,
        }
    }
}
