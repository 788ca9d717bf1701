//! Token: the secret that a server expects and a client sends, given once or in a file that may change.

use std::path::Path;
use std::sync::Arc;

use crate::file_value::FileValue;
use crate::secret::{Secret, TOKEN_BYTES_MAX};

/// A token; clones share it.
#[derive(Debug, Clone)]
pub struct Token(Arc<FileValue<Secret>>);

impl From<Secret> for Token {
    fn from(secret: Secret) -> Self {
        let fixed = FileValue::new(Vec::new(), move || Ok(secret.clone()));
        Self(Arc::new(fixed.expect("a secret that is there is made")))
    }
}

impl Token {
    /// The token in a file, without surrounding white space; a file that changes is read again.
    ///
    /// # Errors
    /// If the file cannot be read, or holds no token that a header can carry.
    pub fn of_file(path: &Path) -> Result<Self, String> {
        let file = path.to_owned();
        let read = move || {
            let held = std::fs::metadata(&file).map_err(|error| error.to_string())?.len();
            if held > 2 * TOKEN_BYTES_MAX as u64 {
                return Err(format!("it has {held} bytes, too many for a token"));
            }
            let text = std::fs::read(&file).map_err(|error| error.to_string())?;
            Secret::of_header(text.trim_ascii())
        };
        Ok(Self(Arc::new(FileValue::new(vec![path.to_owned()], read)?)))
    }

    /// Whether these bytes are the token, or the one that its file held until five minutes ago.
    pub fn is(&self, candidate: &[u8]) -> bool {
        let (now, former) = self.0.with_former();
        now.is(candidate) | former.is_some_and(|former| former.is(candidate))
    }

    /// The token to send; and the former one, which a server that has not read its file again expects.
    pub fn to_send(&self) -> (Arc<Secret>, Option<Arc<Secret>>) {
        self.0.with_former()
    }
}
