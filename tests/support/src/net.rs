//! Free ports and a few bytes of HTTP.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Below Linux's range for outgoing connections (from 32768), so that no client takes a server's port while
/// the server restarts.
const PORTS: std::ops::Range<u64> = 12_000..32_000;

/// So many different ports of the loopback address that nothing listens on now.
///
/// # Errors
/// If none is found after many tries.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    let mut listeners = Vec::new();
    let mut tries = 0;
    while listeners.len() < count {
        tries += 1;
        if tries > 1000 {
            bail!(
                "found only {} of {count} free ports in {PORTS:?}",
                listeners.len()
            );
        }
        let port = PORTS.start + random() % (PORTS.end - PORTS.start);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, u16::try_from(port)?)) {
            listeners.push(listener);
        }
    }
    let ports = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()));
    ports.collect()
}

/// The standard library's random seed is enough for names and ports.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The body of `GET path` from a server on the loopback address.
///
/// # Errors
/// If the server does not answer within 5 s, or not with status 200.
pub(crate) fn http_get(port: u16, path: &str) -> Result<String> {
    let (status, body) = http(port, path)?;
    ensure!(status == 200, "GET {path}: {status}");
    Ok(body)
}

/// Status and body of the answer to `GET path`.
///
/// # Errors
/// If the server does not answer within 5 s.
pub(crate) fn http(port: u16, path: &str) -> Result<(u16, String)> {
    let limit = Duration::from_secs(5);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).context("no HTTP status")?;
    Ok((status.parse()?, body.to_owned()))
}
