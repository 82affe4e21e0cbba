//! Where connections come from: a TCP port or a Unix socket, with TLS or without.

#[cfg(unix)]
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as BoundTcp, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::{
    fs::FileTypeExt,
    net::{UnixListener as BoundUnix, UnixStream},
};
#[cfg(unix)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[cfg(unix)]
use anyhow::Context;
use anyhow::{Result, anyhow, bail};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Maximum open connections. Others wait until one is closed.
const MAX_CONNECTIONS: usize = 8192;
/// How long nothing is accepted after the system has refused a connection, for example because of the limit
/// of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum time of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a server listens.
#[derive(Debug, Clone)]
pub enum Address {
    /// A host and a port; 0: a free one.
    Tcp(String, u16),
    /// The path of a Unix socket.
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Address {
    /// Whether the system chooses the port.
    pub(super) fn is_free_port(&self) -> bool {
        matches!(self, Address::Tcp(_, 0))
    }
}

/// Files of a server's certificate, in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A socket that is bound, but does not accept yet.
pub(super) struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
}

enum Socket {
    Tcp(BoundTcp),
    #[cfg(unix)]
    Unix(BoundUnix, SocketFile),
}

/// The file of a Unix socket, which is removed at the end.
#[cfg(unix)]
struct SocketFile(PathBuf);

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Bytes from and to a client.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, whose handshake is still to come.
pub(super) struct Accepted {
    stream: Box<dyn Stream>,
    tls: Option<TlsAcceptor>,
    permit: OwnedSemaphorePermit,
}

impl Accepted {
    /// The connection after its handshake, with its place among the open ones. `None`: the client does not
    /// speak TLS.
    pub(super) async fn established(self) -> Option<(Box<dyn Stream>, OwnedSemaphorePermit)> {
        let Accepted { stream, tls, permit } = self;
        let stream = match tls {
            None => stream,
            Some(tls) => Box::new(timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await.ok()?.ok()?),
        };
        Some((stream, permit))
    }
}

impl Listener {
    /// Binds an address. A name that does not resolve is an error, and not another address.
    pub(super) fn bind(address: &Address, tls: Option<&TlsFiles>) -> Result<Self> {
        let tls = tls.map(acceptor).transpose()?;
        let socket = match address {
            Address::Tcp(host, port) => Socket::Tcp(bind_tcp(host, *port)?),
            #[cfg(unix)]
            Address::Unix(path) => Socket::Unix(bind_unix(path)?, SocketFile(path.clone())),
        };
        Ok(Listener { socket, tls })
    }

    /// The address for people.
    pub(super) fn url(&self) -> Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(match &self.socket {
            Socket::Tcp(socket) => format!("{scheme}://{}", socket.local_addr()?),
            #[cfg(unix)]
            Socket::Unix(_, SocketFile(path)) => format!("{scheme}+unix://{}", path.display()),
        })
    }

    /// Accepts connections for ever.
    pub(super) async fn accept_all(self, mut serve: impl FnMut(Accepted)) -> Result<()> {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let tls = self.tls;
        let mut next = async |stream: io::Result<Box<dyn Stream>>, permit| match stream {
            Ok(stream) => serve(Accepted { stream, tls: tls.clone(), permit }),
            Err(_) => sleep(ACCEPT_PAUSE).await,
        };
        match self.socket {
            Socket::Tcp(socket) => {
                let socket = TcpListener::from_std(socket)?;
                loop {
                    let permit = permits.clone().acquire_owned().await?;
                    let stream = socket.accept().await.map(|(stream, _)| {
                        // Small answers must not wait for more of the same.
                        let _ = stream.set_nodelay(true);
                        Box::new(stream) as Box<dyn Stream>
                    });
                    next(stream, permit).await;
                }
            }
            #[cfg(unix)]
            Socket::Unix(socket, _file) => {
                let socket = UnixListener::from_std(socket)?;
                loop {
                    let permit = permits.clone().acquire_owned().await?;
                    let stream = socket.accept().await.map(|(stream, _)| Box::new(stream) as Box<dyn Stream>);
                    next(stream, permit).await;
                }
            }
        }
    }
}

fn bind_tcp(host: &str, port: u16) -> Result<BoundTcp> {
    let addresses: Vec<SocketAddr> = match (host, port).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => bail!("--host {host}: no such address ({error}); pass one of this machine"),
    };
    let socket = BoundTcp::bind(&addresses[..]).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            anyhow!("--port {port}: another process listens on {host}:{port}; choose another port, or stop that process")
        }
        ErrorKind::PermissionDenied => {
            anyhow!("--port {port}: this user may not listen on it; choose a port from 1024 on")
        }
        _ => anyhow!("cannot listen on {host}:{port} ({error}); pass a --host of this machine"),
    })?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Binds a Unix socket. A socket that no process listens on any more is replaced; no other file is.
#[cfg(unix)]
fn bind_unix(path: &Path) -> Result<BoundUnix> {
    let name = path.display();
    if let Ok(metadata) = fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            bail!("--unix-socket {name}: there is a file of this name; choose another path");
        }
        if UnixStream::connect(path).is_ok() {
            bail!(
                "--unix-socket {name}: another process listens on it; choose another path, or stop that process"
            );
        }
        fs::remove_file(path)
            .with_context(|| format!("--unix-socket {name}: cannot be replaced; remove the file"))?;
    }
    let socket = BoundUnix::bind(path)
        .map_err(|error| anyhow!("--unix-socket {name}: cannot be made ({error}); choose another path"))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// What makes TLS connections with a certificate.
fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor> {
    let TlsFiles { certificate, key } = files;
    let certificates = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let certificates: Vec<_> = certificates.map_err(|error| {
        anyhow!("--tls-cert {}: not a certificate in PEM ({error}); check the file", certificate.display())
    })?;
    if certificates.is_empty() {
        bail!("--tls-cert {}: has no certificate in PEM; check the file", certificate.display());
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        anyhow!("--tls-key {}: not a private key in PEM ({error}); check the file", key.display())
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = builder.with_no_client_auth().with_single_cert(certificates, key).map_err(|error| {
        anyhow!("--tls-cert {}: does not fit --tls-key ({error}); check the files", certificate.display())
    })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
