//! A secret token that is compared in constant time and never printed.

use std::fmt;

use subtle::ConstantTimeEq;

/// Maximum bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 1024;

/// A token.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

fn padded(bytes: &[u8]) -> [u8; TOKEN_BYTES_MAX] {
    let mut padded = [0; TOKEN_BYTES_MAX];
    let count = bytes.len().min(TOKEN_BYTES_MAX);
    padded[..count].copy_from_slice(&bytes[..count]);
    padded
}

impl Secret {
    /// Makes a token of 1 to 1,024 bytes.
    ///
    /// # Errors
    /// If the length is out of range.
    pub fn new(token: impl Into<Vec<u8>>) -> Result<Self, String> {
        let token = token.into();
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Err(format!("a token has {} bytes, but must have 1 to {TOKEN_BYTES_MAX}", token.len()));
        }
        Ok(Self(token))
    }

    /// Makes a token of 1 to 1,024 visible ASCII characters, which a header can carry.
    ///
    /// # Errors
    /// If the length is out of range, or another character occurs.
    pub fn of_header(token: impl Into<Vec<u8>>) -> Result<Self, String> {
        let secret = Self::new(token)?;
        if !secret.0.iter().all(u8::is_ascii_graphic) {
            let bytes = secret.0.len();
            return Err(format!("a token of {bytes} bytes has characters that are not visible ASCII"));
        }
        Ok(secret)
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether these bytes are the token. Takes the same time for any input.
    pub fn is(&self, candidate: &[u8]) -> bool {
        let is_as_long = (self.0.len() as u64).ct_eq(&(candidate.len() as u64));
        (padded(&self.0).ct_eq(&padded(candidate)) & is_as_long).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_the_token() {
        let secret = Secret::new("open sesame").unwrap();
        assert!(secret.is(b"open sesame"));
        for wrong in [&b""[..], b"open", b"open sesame\0", b"open sesamf", &[0; 2000]] {
            assert!(!secret.is(wrong));
        }
        assert!(!Secret::new([0u8]).unwrap().is(&[0, 0]));
    }

    #[test]
    fn a_secret_is_not_printed_and_has_bounds() {
        assert_eq!(format!("{:?}", Secret::new("open sesame").unwrap()), "Secret(..)");
        assert!(Secret::new("").is_err() && Secret::new([1; 1025]).is_err());
        assert!(Secret::of_header("a b").is_err() && Secret::of_header("").is_err());
        assert!(Secret::of_header("open-sesame").unwrap().is(b"open-sesame"));
    }
}
