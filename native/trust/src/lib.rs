//! Trust between servers and clients: shared secrets, and TLS from files. Knows no protocol.

mod secret;
pub mod tls;

pub use secret::{Secret, TOKEN_BYTES_MAX};
pub use tls::TlsFiles;
