//! `sconce serve --probe`: whether a server answers requests, for the health checks of containers.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::listener::Address;

/// Maximum time of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 ";

/// Asks the server at this address whether it answers requests; one with TLS, whether it takes connections.
///
/// # Errors
/// A sentence if it does not.
pub fn probe(address: &Address, has_tls: bool) -> Result<()> {
    let (name, answer) = match address {
        Address::Tcp(host, port) => {
            let name = format!("{host}:{port}");
            // What listens on all addresses is asked on this machine.
            let host = match &**host {
                "0.0.0.0" => "127.0.0.1",
                "::" => "::1",
                host => host,
            };
            let mut addresses = (host, *port).to_socket_addrs()?;
            let address = addresses.next().context("no such address")?;
            let stream = TcpStream::connect_timeout(&address, TIMEOUT);
            let answer = stream.and_then(|stream| {
                stream.set_read_timeout(Some(TIMEOUT))?;
                ask(stream, has_tls)
            });
            (name, answer)
        }
        #[cfg(unix)]
        Address::Unix(path) => {
            let answer = std::os::unix::net::UnixStream::connect(path).and_then(|stream| {
                stream.set_read_timeout(Some(TIMEOUT))?;
                ask(stream, has_tls)
            });
            (path.display().to_string(), answer)
        }
    };
    match answer {
        Ok(true) => Ok(()),
        Ok(false) => bail!("the server at {name} is not ready"),
        Err(error) => bail!("no server answers at {name} ({error}); start it, or pass its --host and --port"),
    }
}

fn ask(mut stream: impl Read + Write, has_tls: bool) -> std::io::Result<bool> {
    if has_tls {
        return Ok(true);
    }
    stream.write_all(REQUEST)?;
    let mut status = [0; OK.len()];
    stream.read_exact(&mut status)?;
    Ok(status == OK)
}
