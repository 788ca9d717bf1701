//! Whom the servers trust, and who trusts them: a secret that callers say, and TLS from files. It knows no protocol.

mod secret;
pub mod tls;

pub use secret::{Secret, TOKEN_BYTES_MAX};
pub use tls::TlsFiles;
