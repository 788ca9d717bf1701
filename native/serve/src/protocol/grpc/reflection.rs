//! gRPC's reflection: describes the services to tools such as grpcurl, so that they need no file of the protocol.

use std::pin::Pin;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_reflection::server::Builder;

use super::super::body_deadline::TimedBody;

/// `oip.proto` and `health.proto`, compiled; a test holds them together.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
/// The maximum size of a request.
const BYTES_MAX: usize = 4 << 10;

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers the requests of one stream.
pub type Reflect = Box<dyn Fn(Request<TimedBody<Incoming>>) -> Answering + Send + Sync>;

macro_rules! reflect {
    ($build:ident) => {{
        let builder = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        let service =
            builder.$build().expect("the descriptors are valid").max_decoding_message_size(BYTES_MAX);
        Box::new(move |request| {
            let mut service = service.clone();
            Box::pin(async move {
                let Ok(response) = service.call(request).await;
                response
            })
        })
    }};
}

/// Version 1 of the service.
pub fn v1() -> Reflect {
    reflect!(build_v1)
}

/// The version before, which many tools speak.
pub fn v1alpha() -> Reflect {
    reflect!(build_v1alpha)
}
