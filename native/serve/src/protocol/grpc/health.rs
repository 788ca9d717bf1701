//! gRPC's health checking: whether the node answers, or is alive, once or as a stream of changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::super::activity::OpenRequest;
use super::super::connections::turn::Turn;
use super::super::scorer::{Scoring, served};

/// The maximum size of a request.
pub const BYTES_MAX: usize = 1 << 10;

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;
/// How often a watched node is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// A request: the name of a service; empty for the whole node.
#[derive(Clone, PartialEq, Message)]
pub struct HealthAsk {
    /// The name.
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthReply {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The changes of a service's health.
pub type Changes = ReceiverStream<Result<Bytes, Status>>;

fn status_of<S: Scoring>(service: &str, scoring: &S) -> i32 {
    let is_serving = match service {
        "liveness" => scoring.state().is_live,
        "" | "readiness" | "inference.GRPCInferenceService" => scoring.state().is_ready,
        _ => match served(scoring, service) {
            Ok((_, state)) => state.is_ready,
            Err(_) => return SERVICE_UNKNOWN,
        },
    };
    if is_serving { SERVING } else { NOT_SERVING }
}

fn reply(status: i32) -> Bytes {
    HealthReply { status }.encode_to_vec().into()
}

/// Returns the health of a service.
///
/// # Errors
/// If the service is unknown.
pub fn check<S: Scoring>(service: &str, scoring: &S) -> Result<Bytes, Status> {
    match status_of(service, scoring) {
        SERVICE_UNKNOWN => {
            let cut: String = service.chars().take(80).collect();
            let help = "\"\", \"readiness\", \"liveness\" or the name of the model";
            Err(Status::not_found(format!("unknown service {cut:?}; help: ask for {help}")))
        }
        status => Ok(reply(status)),
    }
}

/// Returns the health of a service now and each time it changes. It ends when its connection must leave.
/// Meanwhile the connection has an open request, so that it is not idle.
pub fn changes<S: Scoring>(service: String, scoring: Arc<S>, mut turn: Turn, open: OpenRequest) -> Changes {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _open = open;
        let mut told = None;
        loop {
            let is_draining = turn.is_over();
            let status = match status_of(&service, &*scoring) {
                SERVING if is_draining => NOT_SERVING,
                status => status,
            };
            if told != Some(status) && sender.send(Ok(reply(status))).await.is_err() {
                return;
            }
            told = Some(status);
            if is_draining {
                return;
            }
            tokio::select! {
                () = sender.closed() => return,
                () = turn.over() => {}
                () = sleep(LOOK) => {}
            }
        }
    });
    ReceiverStream::new(receiver)
}
