//! A client's connection, in plaintext or TLS.

use std::{fs::File, io};

use bytes::{Buf, BufMut, BytesMut};
use rustix::net::SendFlags;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

/// What is read ahead of a TLS client while its answer is awaited, to notice that it leaves.
const READ_AHEAD: usize = 16 * 1024;

/// The bytes of one client. Plaintext keeps its socket, for what the system does with sockets only.
#[derive(Debug)]
pub(crate) enum Stream {
    /// As they come.
    Plain(TcpStream),
    /// Within TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Reads what there is; 0 at the end. Cancel safe.
    pub(crate) async fn read_buf(&mut self, buffer: &mut impl BufMut) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_buf(buffer).await,
            Self::Tls(stream) => stream.read_buf(buffer).await,
        }
    }

    /// Waits until there is something to read, or may be: within TLS that is not known. Cancel safe.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.readable().await,
            Self::Tls(_) => Ok(()),
        }
    }

    /// Writes a part of what there is. Not cancel safe: close the connection then.
    pub(crate) async fn write_buf(&mut self, buffer: &mut impl Buf) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write_buf(buffer).await,
            Self::Tls(stream) => stream.write_buf(buffer).await,
        }
    }

    /// Writes a part of what comes before [`Stream::send_file`], in plaintext only. Not cancel safe.
    pub(crate) async fn write_before_file(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        let Self::Plain(stream) = self else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let more = SendFlags::MORE | SendFlags::NOSIGNAL;
        let send = || Ok(rustix::net::send(&*stream, buffer.chunk(), more)?);
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        buffer.advance(sent);
        Ok(sent)
    }

    /// Sends bytes of a file from `position` on, in plaintext only, without a copy of them in this process; how many,
    /// 0 at the end of the file. Blocks where they are not in the page cache. Not cancel safe.
    pub(crate) async fn send_file(
        &mut self,
        file: &File,
        position: u64,
        len: usize,
    ) -> io::Result<usize> {
        let Self::Plain(stream) = self else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let send = || {
            let mut position = position;
            let sent = rustix::fs::sendfile(&*stream, file, Some(&mut position), len)?;
            Ok(sent)
        };
        stream.async_io(Interest::WRITABLE, send).await
    }

    /// Hands everything written to the system: TLS holds a part back. Not cancel safe.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
        }
    }

    /// Says goodbye, so that the end is not taken for a cut. Not cancel safe.
    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.shutdown().await,
        }
    }

    /// Ends when the client has closed its side and nothing it sent is unread, in `buffer` or elsewhere; otherwise
    /// never. Cancel safe.
    ///
    /// The end of TLS is itself something to read, so what a TLS client sends meanwhile goes into `buffer`, up
    /// to 16 KiB: whoever sends more is not watched until it is read.
    pub(crate) async fn client_left(&mut self, buffer: &mut BytesMut) {
        match self {
            Self::Plain(stream) => {
                let mut byte = [0];
                let ended = matches!(stream.peek(&mut byte).await, Ok(0) | Err(_));
                if ended && buffer.is_empty() {
                    return;
                }
            }
            Self::Tls(stream) => {
                while buffer.len() < READ_AHEAD {
                    buffer.reserve(READ_AHEAD);
                    match stream.read_buf(buffer).await {
                        Ok(0) | Err(_) if buffer.is_empty() => return,
                        Ok(0) | Err(_) => break,
                        Ok(_) => {}
                    }
                }
            }
        }
        std::future::pending::<()>().await;
    }
}
