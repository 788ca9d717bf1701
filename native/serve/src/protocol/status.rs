//! Status: what a refusal is called by gRPC and by HTTP, and when to ask again.

use axum::http::StatusCode;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::answer::Refusal;

/// Bytes of a text at most; what is longer is cut, for it travels in a header.
const TEXT_BYTES_MAX: usize = 1024;

impl Refusal {
    /// Its code in gRPC.
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

    /// Its code in HTTP.
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

    /// After how many milliseconds to ask again, where that is known.
    pub fn retry_ms(&self) -> Option<u64> {
        match self {
            Self::Busy { retry_ms, .. } => Some(*retry_ms),
            _ => None,
        }
    }

    /// Its text, cut at 1 KiB.
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
            // The second is what clients that retry by themselves read.
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
        let said = String::new;
        let busy = Refusal::Busy { retry_ms: 7, said: said() };
        let status = Status::from(busy.clone());
        assert_eq!(status.metadata().get("retry-after-ms").unwrap(), "7");
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "7");
        for (refusal, code, http) in [
            (Refusal::Bad(said()), Code::InvalidArgument, 400),
            (Refusal::Unknown(said()), Code::NotFound, 404),
            (Refusal::NotKept(said()), Code::FailedPrecondition, 409),
            (busy, Code::ResourceExhausted, 429),
            (Refusal::Late(said()), Code::DeadlineExceeded, 504),
            (Refusal::Away(said()), Code::Unavailable, 503),
            (Refusal::Broken(said()), Code::Internal, 500),
        ] {
            assert_eq!((refusal.code(), refusal.http().as_u16()), (code, http));
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(Refusal::Bad("é".repeat(600) + "x").text(), "é".repeat(512));
    }
}
