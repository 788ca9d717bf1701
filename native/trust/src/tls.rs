//! TLS: certificates from files, for a server and for a client that trusts one authority.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A server's certificate and key, in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, and those up to an authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What cannot be done with a file.
fn wrong<E: fmt::Display>(what: &str, path: &Path) -> impl Fn(E) -> String {
    let what = format!("{what} {}", path.display());
    move |error| format!("{what}: {error}")
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(wrong("cannot read certificates of", path))
}

/// What makes connections private on a server's side; `protocol` is what is spoken in them, where clients insist on
/// being told, as those of HTTP/2 do.
///
/// # Errors
/// When the files cannot be read or do not belong together.
pub fn acceptor(files: &TlsFiles, protocol: Option<&[u8]>) -> Result<TlsAcceptor, String> {
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(wrong("cannot read the private key of", &files.key))?;
    let chain = certificates(&files.cert)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(wrong("cannot use the certificate of", &files.cert))?;
    config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What makes connections private on a client's side, which trusts those whom this authority has signed.
///
/// # Errors
/// When the file cannot be read, or holds nobody to trust.
pub fn connector(authority: &Path) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(wrong("cannot trust", authority))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong("cannot use", authority))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
