//! Standard output: a reader that goes away (`| head`) ends a command quietly.

use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

use serde::Serialize;

/// Buffered standard output.
#[derive(Debug)]
pub(super) struct Out(BufWriter<StdoutLock<'static>>);

impl Out {
    pub(super) fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout().lock()))
    }

    /// Writes bytes; false when nobody reads any more.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<bool> {
        still_read(self.0.write_all(bytes))
    }

    /// Hands on what is buffered; false when nobody reads any more.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        still_read(self.0.flush())
    }
}

fn still_read(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Prints one line.
pub(super) fn line(text: &str) -> io::Result<()> {
    let mut out = Out::new();
    out.write(text.as_bytes())?;
    out.write(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Prints JSON on one line.
pub(super) fn json_line(value: &impl Serialize) -> io::Result<()> {
    line(&serde_json::to_string(value).map_err(io::Error::other)?)
}

/// Prints indented JSON.
pub(super) fn json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    line(&text)
}
