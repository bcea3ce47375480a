//! Telling systemd how far a service is: `sd_notify`, a datagram to the socket that `NOTIFY_SOCKET` names.
//!
//! The variable is systemd's own, like Hadoop's, and so not part of the configuration.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// Who started this process, if it wants to be told.
#[derive(Debug)]
pub struct Supervisor(Option<(UnixDatagram, SocketAddr)>);

impl Supervisor {
    /// The one that the environment names; without one nobody is told.
    ///
    /// # Errors
    /// The variable names no socket.
    pub fn from_environment() -> io::Result<Self> {
        match std::env::var_os("NOTIFY_SOCKET") {
            Some(name) if !name.is_empty() => Self::at(&name),
            _ => Ok(Self(None)),
        }
    }

    /// The one at a path, or at an abstract name, which begins with `@`.
    ///
    /// # Errors
    /// It cannot be the name of a socket.
    pub fn at(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A supervisor that does not read must not hold up the service.
        socket.set_nonblocking(true)?;
        Ok(Self(Some((socket, address))))
    }

    /// Tells a state such as `READY=1`. A failure is logged: the service serves all the same.
    pub fn tell(&self, state: &str) {
        let Some((socket, address)) = &self.0 else {
            return;
        };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            let error = &error as &dyn std::error::Error;
            warn!(error, state, "the supervisor could not be told");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_socket_is_told_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::at(path.as_os_str()).unwrap();
        supervisor.tell("READY=1");
        assert_eq!(told(&socket), "READY=1");

        let name = format!("logferry-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let supervisor = Supervisor::at(format!("@{name}").as_ref()).unwrap();
        supervisor.tell("STOPPING=1");
        assert_eq!(told(&socket), "STOPPING=1");
    }

    #[test]
    fn a_supervisor_that_is_gone_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = Supervisor::at(folder.path().join("gone").as_os_str()).unwrap();
        supervisor.tell("READY=1");
        Supervisor(None).tell("READY=1");
    }
}
