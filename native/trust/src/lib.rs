//! Trust between servers and clients: shared secrets, and TLS from files. Knows no protocol.

mod file_value;
mod secret;
pub mod tls;
mod token;

pub use file_value::{FileValue, on_renewal};
pub use secret::{Secret, TOKEN_BYTES_MAX};
pub use tls::TlsFiles;
pub use token::Token;
