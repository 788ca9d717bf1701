//! TLS: certificates from files, for a server and for a client that trusts one authority.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::file_value::FileValue;

/// A server's certificate and key, in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, followed by its chain up to an authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Builds the error text of a failed operation on a file.
fn file_error<E: fmt::Display>(action: &str, path: &Path) -> impl Fn(E) -> String {
    let action = format!("{action} {}", path.display());
    move |error| format!("{action}: {error}")
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(file_error("cannot read certificates of", path))
}

/// The server side of TLS, for each connection with the certificate that the files hold then. `protocol` is
/// announced by ALPN, which HTTP/2 clients require.
///
/// # Errors
/// If the files cannot be read or do not belong together.
pub fn renewed_acceptor(
    files: &TlsFiles,
    protocol: Option<&'static [u8]>,
) -> Result<FileValue<TlsAcceptor>, String> {
    let (paths, files) = (vec![files.cert.clone(), files.key.clone()], files.clone());
    FileValue::new(paths, move || acceptor(&files, protocol))
}

fn acceptor(files: &TlsFiles, protocol: Option<&[u8]>) -> Result<TlsAcceptor, String> {
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(file_error("cannot read the private key of", &files.key))?;
    let chain = certificates(&files.cert)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(file_error("cannot use the certificate of", &files.cert))?;
    config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The client side of TLS, for each connection with the authority that the file holds then.
///
/// # Errors
/// As those of `connector`.
pub fn renewed_connector(authority: &Path) -> Result<FileValue<TlsConnector>, String> {
    let file = authority.to_owned();
    FileValue::new(vec![authority.to_owned()], move || connector(&file))
}

/// The client side of TLS, which trusts certificates signed by `authority`.
///
/// # Errors
/// If the file cannot be read or has no usable certificates.
pub fn connector(authority: &Path) -> Result<TlsConnector, String> {
    Ok(TlsConnector::from(Arc::new(client(authority)?.0)))
}

fn client(authority: &Path) -> Result<(ClientConfig, Arc<RootCertStore>), String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(file_error("cannot trust", authority))?;
    }
    let roots = Arc::new(roots);
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(file_error("cannot use", authority))?
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    Ok((config, roots))
}

/// The client side of TLS for servers that are known by addresses alone: the authority must have signed their
/// certificates, which may be for any name. Use it with an authority that signs for these servers alone. `protocol` is
/// announced by ALPN.
///
/// # Errors
/// As those of `connector`.
pub fn renewed_nameless_connector(
    authority: &Path,
    protocol: &'static [u8],
) -> Result<FileValue<TlsConnector>, String> {
    let file = authority.to_owned();
    FileValue::new(vec![authority.to_owned()], move || {
        let (mut config, roots) = client(&file)?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(default_provider()));
        let verifier = verifier.build().map_err(file_error("cannot trust", &file))?;
        config.dangerous().set_certificate_verifier(Arc::new(AnyName(verifier)));
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    })
}

/// Accepts what another verifier accepts, and certificates of other names: names are checked last.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.0.verify_server_cert(certificate, chain, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
