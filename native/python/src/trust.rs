//! Tokens: given once, or in a file that may change; and word of files that were read again.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use streamlearn_trust::{Secret, Token, on_renewal};

#[pyclass(frozen, name = "Token", module = "streamlearn._native")]
pub struct NativeToken(Token);

#[pymethods]
impl NativeToken {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        Token::of_file(&path).map(Self).map_err(PyValueError::new_err)
    }

    /// Whether these bytes are the token, or the one that its file held until five minutes ago.
    fn matches(&self, py: Python<'_>, sent: &[u8]) -> bool {
        let sent = sent.to_vec();
        py.detach(|| self.0.is(&sent))
    }

    /// The token to send.
    fn current<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, py.detach(|| self.0.to_send().0).bytes())
    }
}

/// A token as callers give it.
#[derive(FromPyObject)]
pub enum GivenToken<'py> {
    Of(PyRef<'py, NativeToken>),
    Bytes(Vec<u8>),
    Text(String),
}

impl GivenToken<'_> {
    /// Returns it; with `for_headers`, it must be one that a header can carry.
    pub fn token(self, for_headers: bool) -> Result<Token, String> {
        let make = |bytes: Vec<u8>| if for_headers { Secret::of_header(bytes) } else { Secret::new(bytes) };
        match self {
            Self::Of(token) => Ok(token.0.clone()),
            Self::Bytes(bytes) => make(bytes).map(Token::from),
            Self::Text(text) => make(text.into_bytes()).map(Token::from),
        }
    }
}

/// Tells Python of files that were read again.
fn tell(files: &str, error: Option<&str>) {
    let told = Python::try_attach(|py| {
        py.import("streamlearn.access.renewal")?.call_method1("note_renewal", (files, error)).map(drop)
    });
    if let Some(Err(failed)) = told {
        eprintln!("cannot note that {files} changed: {failed}");
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    on_renewal(tell);
    module.add_class::<NativeToken>()
}
