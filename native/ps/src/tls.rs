//! TLS between shards and their clients, with this crate's errors.

use std::path::Path;

use streamlearn_trust::{FileValue, TlsFiles, tls};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::{PsError, Result, Trouble};

/// Creates the TLS acceptor of a shard.
pub fn acceptor(files: &TlsFiles) -> Result<FileValue<TlsAcceptor>> {
    tls::renewed_acceptor(files, None).map_err(|text| PsError::new(Trouble::Io, text))
}

/// Creates the TLS connector of a client, and the server name that it expects.
pub fn connector(
    authority: &Path,
    server_name: &str,
) -> Result<(FileValue<TlsConnector>, ServerName<'static>)> {
    let connector = tls::renewed_connector(authority).map_err(|text| PsError::new(Trouble::Io, text))?;
    let name = ServerName::try_from(server_name.to_owned())
        .map_err(|error| PsError::new(Trouble::Settings, format!("server name {server_name:?}: {error}")))?;
    Ok((connector, name))
}
