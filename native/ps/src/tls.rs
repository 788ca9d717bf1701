//! TLS: certificates from files, for a server and for a client that trusts one authority.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::{PsError, Result, Trouble};

/// A server's certificate and key, in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, and those up to an authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

fn trouble(what: &str, path: &Path, error: impl std::fmt::Display) -> PsError {
    PsError::new(Trouble::Io, format!("{what} {}: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| trouble("cannot read certificates of", path, error))
}

/// What makes connections private on a server's side.
pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor> {
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| trouble("cannot read the private key of", &files.key, error))?;
    let chain = certificates(&files.cert)?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| trouble("cannot use the certificate of", &files.cert, error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What makes connections private on a client's side, and whom it expects there.
pub fn connector(authority: &Path, server_name: &str) -> Result<(TlsConnector, ServerName<'static>)> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(|error| trouble("cannot trust", authority, error))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| trouble("cannot use", authority, error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(server_name.to_owned())
        .map_err(|error| PsError::new(Trouble::Settings, format!("server name {server_name:?}: {error}")))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}
