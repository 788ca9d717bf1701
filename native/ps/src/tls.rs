//! TLS between shards and their clients, as the errors of this crate say what is wrong with it.

use std::path::Path;

use streamlearn_trust::{TlsFiles, tls};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::{PsError, Result, Trouble};

/// What makes connections private on a shard's side.
pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor> {
    tls::acceptor(files, None).map_err(|said| PsError::new(Trouble::Io, said))
}

/// What makes connections private on a client's side, and whom it expects there.
pub fn connector(authority: &Path, server_name: &str) -> Result<(TlsConnector, ServerName<'static>)> {
    let connector = tls::connector(authority).map_err(|said| PsError::new(Trouble::Io, said))?;
    let name = ServerName::try_from(server_name.to_owned())
        .map_err(|error| PsError::new(Trouble::Settings, format!("server name {server_name:?}: {error}")))?;
    Ok((connector, name))
}
