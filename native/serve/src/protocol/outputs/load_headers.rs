//! Load headers: a node's load in its answers, as Open Request Cost Aggregation (ORCA) has it. Proxies and clients
//! that know it weight nodes by it, and nobody has to ask.
//!
//! By HTTP it is a text. By gRPC it is a message in the trailer, because that is what clients of gRPC read (A51).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

use crate::load::NodeLoad;

const TEXT: HeaderName = HeaderName::from_static("endpoint-load-metrics");
const BINARY: &str = "endpoint-load-metrics-bin";
/// How long a reading is used: the load is a mean over seconds.
const USE: Duration = Duration::from_millis(10);

/// `xds.data.orca.v3.OrcaLoadReport`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
struct LoadReport {
    #[prost(double, tag = "6")]
    rps_fractional: f64,
    #[prost(double, tag = "7")]
    eps: f64,
    #[prost(double, tag = "9")]
    application_utilization: f64,
}

/// The newest reading, in both forms.
#[derive(Debug, Default)]
pub struct LoadHeaders(Mutex<Option<(Instant, HeaderValue, HeaderMap)>>);

impl LoadHeaders {
    /// Adds the load to the head of an answer by HTTP; `load` reads it.
    pub fn add_text(&self, headers: &mut HeaderMap, load: impl FnOnce() -> Option<NodeLoad>) {
        self.with(load, |text, _| drop(headers.insert(TEXT, text.clone())));
    }

    /// Adds the load to the trailer of an answer by gRPC; `load` reads it.
    pub fn add_binary(&self, trailer: &mut HeaderMap, load: impl FnOnce() -> Option<NodeLoad>) {
        self.with(load, |_, binary| trailer.extend(binary.clone()));
    }

    fn with(&self, load: impl FnOnce() -> Option<NodeLoad>, add: impl FnOnce(&HeaderValue, &HeaderMap)) {
        let now = Instant::now();
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reading.as_ref().is_none_or(|(at, ..)| now.duration_since(*at) > USE) {
            *reading = load().map(|load| (now, text(load), binary(load)));
        }
        if let Some((_, text, binary)) = &*reading {
            add(text, binary);
        }
    }
}

fn text(NodeLoad { utilization, answers, failures }: NodeLoad) -> HeaderValue {
    let text = format!(
        "TEXT application_utilization={utilization:e}, rps_fractional={answers:.3}, eps={failures:.3}"
    );
    HeaderValue::try_from(text).expect("letters and digits")
}

fn binary(NodeLoad { utilization, answers, failures }: NodeLoad) -> HeaderMap {
    let report = LoadReport { rps_fractional: answers, eps: failures, application_utilization: utilization };
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(BINARY, BinaryMetadataValue::from_bytes(&report.encode_to_vec()));
    metadata.into_headers()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: NodeLoad = NodeLoad { utilization: 0.25, answers: 500.0, failures: 0.0 };

    #[test]
    fn both_forms_say_the_same_and_a_reading_is_used_for_a_while() {
        let (headers, mut head, mut trailer) = (LoadHeaders::default(), HeaderMap::new(), HeaderMap::new());
        headers.add_text(&mut head, || Some(LOAD));
        assert_eq!(
            head["endpoint-load-metrics"],
            "TEXT application_utilization=2.5e-1, rps_fractional=500.000, eps=0.000"
        );
        headers.add_binary(&mut trailer, || panic!("it was read just now"));
        let metadata = MetadataMap::from_headers(trailer);
        let bytes = metadata.get_bin(BINARY).unwrap().to_bytes().unwrap();
        // Two numbers of eight bytes, each after its tag; zero is left out.
        assert_eq!(bytes[..], [&[0x31][..], &500f64.to_le_bytes(), &[0x49], &0.25f64.to_le_bytes()].concat());
    }

    #[test]
    fn without_a_load_nothing_is_said() {
        let mut head = HeaderMap::new();
        LoadHeaders::default().add_text(&mut head, || None);
        assert!(head.is_empty());
    }
}
