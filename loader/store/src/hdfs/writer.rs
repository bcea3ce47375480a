//! Writing one file on HDFS.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hdfs_native::HdfsError;
use hdfs_native::file::FileWriter as NativeWriter;

use super::errors::{Failure, Request};
use crate::{Error, FileWriter, Operation, Result, StorePath};

/// How much is handed over under one time limit: a slow cluster is not mistaken for a dead one
/// because a caller's buffer is large.
const CHUNK_BYTES: usize = 1 << 20;

/// An open file. hdfs-native cuts the stream into packets and blocks, and queues at most 100 packets
/// to send and 100 to be acknowledged.
pub(super) struct HdfsWriter {
    path: StorePath,
    address: String,
    timeout: Duration,
    len: u64,
    /// Away while a write runs, and for good after an error or a dropped call.
    native: Option<NativeWriter>,
}

impl std::fmt::Debug for HdfsWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HdfsWriter")
            .field("path", &self.path)
            .field("len", &self.len)
            .finish()
    }
}

impl HdfsWriter {
    pub(super) fn new(
        path: StorePath,
        address: String,
        timeout: Duration,
        native: NativeWriter,
    ) -> Self {
        Self {
            path,
            address,
            timeout,
            len: 0,
            native: Some(native),
        }
    }

    fn take(&mut self) -> Result<NativeWriter> {
        self.native.take().ok_or_else(|| Error::WriteFailed {
            path: self.path.clone(),
            source: "an earlier write failed or was given up".into(),
        })
    }

    async fn limited<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, HdfsError>> + Send,
    ) -> Result<T> {
        let failure = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => Failure::Hdfs(error),
            Err(_) => Failure::NoAnswer(self.timeout),
        };
        let request = Request {
            operation,
            path: &self.path,
            address: &self.address,
        };
        Err(request.write_error(failure))
    }
}

#[async_trait]
impl FileWriter for HdfsWriter {
    async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        let mut native = self.take()?;
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
            let len = chunk.len() as u64;
            self.limited(Operation::Write, Box::pin(native.write_bytes(chunk)))
                .await?;
            self.len = self.len.saturating_add(len);
        }
        self.native = Some(native);
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<u64> {
        let mut native = self.take()?;
        self.limited(Operation::Close, Box::pin(native.close()))
            .await?;
        Ok(self.len)
    }
}
