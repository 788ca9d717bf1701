//! Status: the gRPC and HTTP codes of refusals, and the retry hint.

use axum::http::StatusCode;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::answer::Refusal;

/// The maximum length of a text in bytes; longer texts are cut, because a header carries them.
const TEXT_BYTES_MAX: usize = 1024;

impl Refusal {
    /// Returns the gRPC code.
    pub fn code(&self) -> Code {
        match self {
            Self::Bad(_) => Code::InvalidArgument,
            Self::Unknown(_) => Code::NotFound,
            Self::NotKept(_) => Code::FailedPrecondition,
            Self::Busy { .. } => Code::ResourceExhausted,
            Self::Late(_) => Code::DeadlineExceeded,
            Self::Away(_) => Code::Unavailable,
            Self::Broken(_) => Code::Internal,
        }
    }

    /// Returns the HTTP code.
    pub fn http(&self) -> StatusCode {
        match self {
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::NotKept(_) => StatusCode::CONFLICT,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Late(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Away(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the retry hint in milliseconds, if there is one.
    pub fn retry_ms(&self) -> Option<u64> {
        match self {
            Self::Busy { retry_ms, .. } => Some(*retry_ms),
            _ => None,
        }
    }

    /// Returns the text, cut at 1 KiB.
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        if text.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end));
            text.truncate(end.unwrap_or(0));
        }
        text
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut metadata = MetadataMap::new();
        if let Some(retry_ms) = refusal.retry_ms() {
            // The second header is the one that retrying clients read.
            metadata.insert("retry-after-ms", retry_ms.into());
            metadata.insert("grpc-retry-pushback-ms", retry_ms.into());
        }
        Status::with_metadata(refusal.code(), refusal.text(), metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_codes() {
        let no_text = String::new;
        let busy = Refusal::Busy { retry_ms: 7, text: no_text() };
        let status = Status::from(busy.clone());
        assert_eq!(status.metadata().get("retry-after-ms").unwrap(), "7");
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "7");
        for (refusal, code, http) in [
            (Refusal::Bad(no_text()), Code::InvalidArgument, 400),
            (Refusal::Unknown(no_text()), Code::NotFound, 404),
            (Refusal::NotKept(no_text()), Code::FailedPrecondition, 409),
            (busy, Code::ResourceExhausted, 429),
            (Refusal::Late(no_text()), Code::DeadlineExceeded, 504),
            (Refusal::Away(no_text()), Code::Unavailable, 503),
            (Refusal::Broken(no_text()), Code::Internal, 500),
        ] {
            assert_eq!((refusal.code(), refusal.http().as_u16()), (code, http));
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(Refusal::Bad("é".repeat(600) + "x").text(), "é".repeat(512));
    }
}
