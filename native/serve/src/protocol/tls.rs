//! TLS: what makes a server's connections private, from a certificate and a key in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A server's certificate and key, in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, and those up to an authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What makes connections private; `protocol` is what is spoken in them, which clients of HTTP/2 insist on being told.
///
/// # Errors
/// When the files cannot be read or do not belong together.
pub fn acceptor(files: &TlsFiles, protocol: &'static [u8]) -> Result<TlsAcceptor, String> {
    fn wrong(what: &str, path: &Path) -> impl Fn(tokio_rustls::rustls::pki_types::pem::Error) -> String {
        let what = format!("{what} {}", path.display());
        move |error| format!("{what}: {error}")
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(wrong("cannot read the private key of", &files.key))?;
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(wrong("cannot read certificates of", &files.cert))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| format!("cannot use the certificate of {}: {error}", files.cert.display()))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
