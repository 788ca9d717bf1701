//! HTTP/1.1 with JSON: the REST form of the Open Inference Protocol, requests as rows, versions and metrics.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State as Shared};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::connections::{self, Leave, Peer};
use super::door::{Door, DoorLimits, NO_TOKEN};
use super::grpc::left_us;
use super::infer::{self, Form};
use super::input_names::Naming;
use super::json::{self, Written};
use super::peer_bytes::OnItsWay;
use super::plain::Came;
use super::scorer::Scoring;
use super::traffic::Protocol;
use super::{node_view, rows};
use crate::answer::{Answer, Refusal};
use crate::request;

/// What anybody may ask, and at any time.
const OPEN: [&str; 4] = ["/health", "/ready", "/v2/health/live", "/v2/health/ready"];

/// What stands behind the routes.
pub struct Front<S> {
    /// Who answers.
    pub scoring: Arc<S>,
    door: Arc<Door>,
}

impl<S> Clone for Front<S> {
    fn clone(&self) -> Self {
        Self { scoring: self.scoring.clone(), door: self.door.clone() }
    }
}

/// Where a route finds it.
pub type At<S> = Shared<Front<S>>;

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
                let (asked, door, router) = (activity.enter(), door.clone(), router.clone());
                async move {
                    let path = request.uri().path();
                    let mut counting = door.traffic().request(Protocol::Http);
                    if path == "/score" || path.ends_with("/infer") {
                        counting.scored();
                    }
                    let is_known = door.knows(request.headers());
                    if is_known {
                        asked.admit();
                    }
                    let response = if is_known || OPEN.contains(&path) {
                        router.call(request).await?
                    } else {
                        drop(request);
                        door.refuse_token().await;
                        unknown_caller()
                    };
                    counting.answered(response.status().as_u16());
                    Ok::<_, Infallible>(response.map(|body| OnItsWay::new(body, asked.answered())))
                }
            });
            leave.ride(builder.serve_connection(peer, service), |it| it.graceful_shutdown()).await;
        }
    };
    connections::serve(listener, door, Protocol::Http, shutdown, talk).await
}

fn builder(limits: &DoorLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // It runs while nothing is asked too; how long headers alone may take is looked after beside it.
        .header_read_timeout(Duration::from_millis(limits.idle_ms_max))
        .max_buf_size(limits.header_bytes_max as usize);
    builder
}

fn router<S: Scoring>(front: Front<S>) -> Router {
    let nothing =
        || async { failed(StatusCode::NOT_FOUND, "there is nothing here; help: GET /v2 says what is") };
    let not_so = || async { failed(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method") };
    Router::new()
        .merge(node_view::router())
        .route("/v2/models/{name}/infer", post(infer::<S>))
        .route("/v2/models/{name}/versions/{version}/infer", post(infer::<S>))
        .route("/score", post(score::<S>))
        .fallback(nothing)
        .method_not_allowed_fallback(not_so)
        .with_state(front)
}

/// An answer of any kind.
pub fn response(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// An answer in JSON.
pub fn says(status: StatusCode, value: &Value) -> Response {
    response(status, "application/json", value.to_string())
}

/// What went wrong, in JSON.
pub fn failed(status: StatusCode, text: &str) -> Response {
    says(status, &json!({ "error": text }))
}

fn unknown_caller() -> Response {
    let mut response = failed(StatusCode::UNAUTHORIZED, NO_TOKEN);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// A refusal, in JSON.
pub fn refused(refusal: &Refusal) -> Response {
    let mut response = failed(refusal.http(), &refusal.text());
    if let Some(retry_ms) = refusal.retry_ms() {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, retry_ms.div_ceil(1000).max(1).into());
        headers.insert("retry-after-ms", retry_ms.into());
    }
    response
}

fn written(reply: Result<Written, Refusal>) -> Response {
    match reply {
        Ok(Written { body, json_bytes: None }) => response(StatusCode::OK, "application/json", body),
        Ok(Written { body, json_bytes: Some(bytes) }) => {
            let mut response = response(StatusCode::OK, "application/octet-stream", body);
            response.headers_mut().insert(json::JSON_BYTES, bytes.into());
            response
        }
        Err(refusal) => refused(&refusal),
    }
}

/// Where the JSON of a body ends, as a header says; where the body does, by default.
fn json_end(headers: &HeaderMap) -> Result<Option<usize>, Refusal> {
    let Some(header) = headers.get(json::JSON_BYTES) else { return Ok(None) };
    let found = header.to_str().ok().and_then(|text| text.parse().ok());
    let wrong = || Refusal::Bad(format!("{} is {header:?}, expected a number of bytes", json::JSON_BYTES));
    found.map(Some).ok_or_else(wrong)
}

/// A model and perhaps a version, of a path.
#[derive(serde::Deserialize)]
pub struct Of {
    /// The model.
    pub name: String,
    /// The version; empty for any.
    #[serde(default)]
    pub version: String,
}

async fn infer<S: Scoring>(Shared(front): At<S>, Path(of): Path<Of>, request: Request<Body>) -> Response {
    let json_end = json_end(request.headers());
    let came = Came::Tensors(*json_end.as_ref().unwrap_or(&None));
    let decode = |body: &[u8], naming: &Naming| {
        infer::check_model(&of.name, naming)?;
        let (json, raw) = json::parts(body, json_end?)?;
        json::decode(json, raw, naming, &of.version)
    };
    front.answer((request, came), decode, json::encode).await
}

async fn score<S: Scoring>(Shared(front): At<S>, request: Request<Body>) -> Response {
    let decode = |body: &[u8], naming: &Naming| {
        let rows::Asked { id, sides, said, wanted } = rows::decode(body, naming)?;
        let (id, outputs) = (infer::id_of(&id)?, wanted.outputs(naming.inputs().labels.len()));
        let raw = vec![false; outputs.len()];
        let form = Form { id: id.clone(), candidates: sides.candidates, outputs, raw };
        Ok((infer::request(naming, id, sides, said), form))
    };
    front.answer((request, Came::Rows), decode, json::encode_scores).await
}

impl<S: Scoring> Front<S> {
    /// Take a request in, have it scored, and write the answer.
    async fn answer(
        &self,
        (request, came): (Request<Body>, Came),
        decode: impl FnOnce(&[u8], &Naming) -> Result<(request::Request, Form), Refusal>,
        encode: impl FnOnce(&Form, &Answer, &Naming) -> Result<Written, Refusal>,
    ) -> Response {
        let arrived = Instant::now();
        if let Some(coding) = request.headers().get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
            let said =
                format!("a body of {coding:?}: bodies are not compressed here; help: send it as it is");
            return failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, &said);
        }
        let naming = self.scoring.naming();
        let (body, _place) = match self.body(request, &naming).await {
            Ok(body) => body,
            Err(response) => return *response,
        };
        let began = Instant::now();
        let decoded = decode(&body, &naming);
        self.door.traffic().decoded(began);
        let decoded = decoded.and_then(|(mut request, form)| {
            request.wishes.deadline_us = left_us(request.wishes.deadline_us, arrived)?;
            Ok((request, form))
        });
        let (request, form) = match decoded {
            Ok(decoded) => decoded,
            Err(refusal) => return refused(&refusal),
        };
        let kept = self.scoring.shown().and_then(|shown| shown.keep(&request, came, &body));
        drop(body);
        let answered = self.scoring.score(request).await;
        written(answered.and_then(|answer| {
            let reply = encode(&form, &answer, &naming)?;
            if let Some((shown, kept)) = self.scoring.shown().zip(kept) {
                shown.note(kept, form.id, answer);
            }
            Ok(reply)
        }))
    }

    /// A request's body, up to a bound and within a time, and the place that it takes among requests.
    pub async fn body(
        &self,
        request: Request<Body>,
        naming: &Naming,
    ) -> Result<(Bytes, OwnedSemaphorePermit), Box<Response>> {
        let place = self.door.request().map_err(|refusal| Box::new(refused(&refusal)))?;
        let limits = self.door.limits;
        let bytes_max = limits.http_bytes_max.min(naming.inputs().limits.message_bytes_max);
        let wait = Duration::from_millis(limits.arrival_wait_ms_max);
        match timeout(wait, Limited::new(request.into_body(), bytes_max).collect()).await {
            Ok(Ok(body)) => Ok((body.to_bytes(), place)),
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
