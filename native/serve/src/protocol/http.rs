//! HTTP/1.1 with JSON: the REST form of the Open Inference Protocol, requests as rows, versions and metrics.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State as Shared};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::connections::{self, Leave, Peer};
use super::door::{Door, DoorLimits, NO_TOKEN};
use super::grpc::left_us;
use super::infer::{self, Form};
use super::naming::Naming;
use super::scoring::Scoring;
use super::wishes::version_of;
use super::{describe, json, rows};
use crate::answer::{Answer, Refusal};
use crate::request;

/// What stands behind the routes.
struct Front<S> {
    scoring: Arc<S>,
    door: Arc<Door>,
}

impl<S> Clone for Front<S> {
    fn clone(&self) -> Self {
        Self { scoring: self.scoring.clone(), door: self.door.clone() }
    }
}

type At<S> = Shared<Front<S>>;

/// Serve HTTP until `shutdown`, then finish what was begun.
///
/// # Errors
/// When the certificate and key of TLS cannot be used.
pub async fn serve_http<S: Scoring>(
    listener: TcpListener,
    scoring: Arc<S>,
    door: Arc<Door>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let builder = builder(&door.limits);
    let router = TowerToHyperService::new(router(Front { scoring, door: door.clone() }));
    let at_door = door.clone();
    let talk = move |peer: Peer, leave: Leave| {
        let (router, builder, activity) = (router.clone(), builder.clone(), leave.activity.clone());
        let door = at_door.clone();
        async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let (active, door, router) = (activity.enter(), door.clone(), router.clone());
                async move {
                    let is_open = matches!(request.uri().path(), "/v2/health/live" | "/v2/health/ready");
                    let response = if is_open || door.knows(request.headers()).await {
                        router.call(request).await
                    } else {
                        Ok(unknown_caller())
                    };
                    drop(active);
                    response
                }
            });
            leave.ride(builder.serve_connection(peer, service), |it| it.graceful_shutdown()).await;
        }
    };
    connections::serve(listener, door, b"http/1.1", shutdown, talk).await
}

fn builder(limits: &DoorLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // It runs while nothing is asked too, so it is not how long headers alone may take.
        .header_read_timeout(Duration::from_millis(limits.idle_ms_max))
        .max_buf_size(limits.header_bytes_max as usize);
    builder
}

fn router<S: Scoring>(front: Front<S>) -> Router {
    let nothing =
        || async { failed(StatusCode::NOT_FOUND, "there is nothing here; help: GET /v2 says what is") };
    let not_so = || async { failed(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method") };
    Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(live::<S>))
        .route("/v2/health/ready", get(ready::<S>))
        .route("/v2/models/{name}", get(metadata::<S>))
        .route("/v2/models/{name}/ready", get(model_ready::<S>))
        .route("/v2/models/{name}/versions/{version}", get(metadata::<S>))
        .route("/v2/models/{name}/versions/{version}/ready", get(model_ready::<S>))
        .route("/v2/models/{name}/infer", post(infer::<S>))
        .route("/v2/models/{name}/versions/{version}/infer", post(infer::<S>))
        .route("/score", post(score::<S>))
        .route("/versions", get(versions::<S>))
        .route("/metrics", get(metrics::<S>))
        .fallback(nothing)
        .method_not_allowed_fallback(not_so)
        .with_state(front)
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn says(status: StatusCode, value: &Value) -> Response {
    response(status, "application/json", value.to_string())
}

fn failed(status: StatusCode, text: &str) -> Response {
    says(status, &json!({ "error": text }))
}

fn unknown_caller() -> Response {
    let mut response = failed(StatusCode::UNAUTHORIZED, NO_TOKEN);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn refused(refusal: &Refusal) -> Response {
    let mut response = failed(refusal.http(), &refusal.text());
    if let Some(retry_ms) = refusal.retry_ms() {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, retry_ms.div_ceil(1000).max(1).into());
        headers.insert("retry-after-ms", retry_ms.into());
    }
    response
}

fn written(reply: Result<Bytes, Refusal>) -> Response {
    match reply {
        Ok(reply) => response(StatusCode::OK, "application/json", reply),
        Err(refusal) => refused(&refusal),
    }
}

async fn server() -> Response {
    let about = describe::server();
    says(
        StatusCode::OK,
        &json!({ "name": about.name, "version": about.version, "extensions": about.extensions }),
    )
}

fn yes_or_no(is: bool, value: &Value) -> Response {
    says(if is { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, value)
}

async fn live<S: Scoring>(Shared(front): At<S>) -> Response {
    let is_live = front.scoring.state().is_live;
    yes_or_no(is_live, &json!({ "live": is_live }))
}

async fn ready<S: Scoring>(Shared(front): At<S>) -> Response {
    let state = front.scoring.state();
    let mut value = json!({ "ready": state.is_ready });
    if let Some(stale) = state.stale {
        value["stale"] = stale.into();
    }
    yes_or_no(state.is_ready, &value)
}

/// A model and perhaps a version, of a path.
#[derive(serde::Deserialize)]
struct Of {
    name: String,
    #[serde(default)]
    version: String,
}

async fn model_ready<S: Scoring>(Shared(front): At<S>, Path(of): Path<Of>) -> Response {
    let (naming, state) = (front.scoring.naming(), front.scoring.state());
    let named = infer::check_model(&of.name, &naming).and_then(|()| version_of(&of.version));
    match named {
        Ok(version) => {
            let is_ready = state.is_ready && state.has(version);
            yes_or_no(is_ready, &json!({ "name": of.name, "ready": is_ready }))
        }
        Err(refusal) => refused(&refusal),
    }
}

async fn metadata<S: Scoring>(Shared(front): At<S>, Path(of): Path<Of>) -> Response {
    let (naming, state) = (front.scoring.naming(), front.scoring.state());
    let known =
        infer::check_model(&of.name, &naming).and_then(|()| describe::check_version(&state, &of.version));
    if let Err(refusal) = known {
        return refused(&refusal);
    }
    let about = describe::metadata(&naming, &state);
    let tensors = |tensors: &[super::messages::TensorMetadata]| -> Vec<Value> {
        let tensor = |one: &super::messages::TensorMetadata| json!({ "name": one.name, "datatype": one.datatype, "shape": one.shape });
        tensors.iter().map(tensor).collect()
    };
    let (inputs, outputs) = (tensors(&about.inputs), tensors(&about.outputs));
    let value = json!({
        "name": about.name, "versions": about.versions, "platform": about.platform,
        "inputs": inputs, "outputs": outputs,
    });
    says(StatusCode::OK, &value)
}

async fn versions<S: Scoring>(Shared(front): At<S>) -> Response {
    let (naming, state) = (front.scoring.naming(), front.scoring.state());
    let value = json!({
        "model": naming.model(), "active": state.active, "kept": state.kept, "stale": state.stale,
    });
    says(StatusCode::OK, &value)
}

async fn metrics<S: Scoring>(Shared(front): At<S>) -> Response {
    response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", front.scoring.metrics())
}

async fn infer<S: Scoring>(Shared(front): At<S>, Path(of): Path<Of>, request: Request<Body>) -> Response {
    let decode = |body: &[u8], naming: &Naming| {
        infer::check_model(&of.name, naming)?;
        json::decode(body, naming, &of.version)
    };
    if request.headers().contains_key("inference-header-content-length") {
        let said = "numbers stand in the JSON here; help: ask without binary data, or use gRPC";
        return failed(StatusCode::BAD_REQUEST, said);
    }
    front.answer(request, decode, json::encode).await
}

async fn score<S: Scoring>(Shared(front): At<S>, request: Request<Body>) -> Response {
    let decode = |body: &[u8], naming: &Naming| {
        let rows::Asked { id, sides, said, wanted } = rows::decode(body, naming)?;
        let (id, outputs) = (infer::id_of(&id)?, wanted.outputs(naming.inputs().labels.len()));
        let form = Form { id: id.clone(), candidates: sides.candidates, outputs, is_raw: false };
        Ok((infer::request(naming, id, sides, said), form))
    };
    front.answer(request, decode, json::encode_scores).await
}

impl<S: Scoring> Front<S> {
    /// Take a request in, have it scored, and write the answer.
    async fn answer(
        &self,
        request: Request<Body>,
        decode: impl FnOnce(&[u8], &Naming) -> Result<(request::Request, Form), Refusal>,
        encode: impl FnOnce(&Form, &Answer, &Naming) -> Result<Bytes, Refusal>,
    ) -> Response {
        let arrived = Instant::now();
        let _place = match self.door.request() {
            Ok(place) => place,
            Err(refusal) => return refused(&refusal),
        };
        let naming = self.scoring.naming();
        let body = match self.body(request, &naming).await {
            Ok(body) => body,
            Err(response) => return *response,
        };
        let decoded = decode(&body, &naming).and_then(|(mut request, form)| {
            request.wishes.deadline_us = left_us(request.wishes.deadline_us, arrived)?;
            Ok((request, form))
        });
        drop(body);
        let (request, form) = match decoded {
            Ok(decoded) => decoded,
            Err(refusal) => return refused(&refusal),
        };
        let answered = self.scoring.score(request).await;
        written(answered.and_then(|answer| encode(&form, &answer, &naming)))
    }

    /// A request's body, up to a bound and within a time.
    async fn body(&self, request: Request<Body>, naming: &Naming) -> Result<Bytes, Box<Response>> {
        let limits = self.door.limits;
        let bytes_max = limits.http_bytes_max.min(naming.inputs().limits.message_bytes_max);
        let wait = Duration::from_millis(limits.arrival_wait_ms_max);
        match timeout(wait, Limited::new(request.into_body(), bytes_max).collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                let text =
                    format!("the body is larger than {bytes_max} bytes; help: ask in several requests");
                Err(Box::new(failed(StatusCode::PAYLOAD_TOO_LARGE, &text)))
            }
            Ok(Err(error)) => {
                Err(Box::new(failed(StatusCode::BAD_REQUEST, &format!("the body did not arrive: {error}"))))
            }
            Err(_) => {
                let text = format!("the body did not arrive whole within {} ms", limits.arrival_wait_ms_max);
                Err(Box::new(failed(StatusCode::REQUEST_TIMEOUT, &text)))
            }
        }
    }
}
