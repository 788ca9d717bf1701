//! HTTP/1.1 with JSON: the REST form of the Open Inference Protocol, requests as rows, versions and metrics.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State as Shared};
use axum::http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::Response;
use axum::routing::post;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
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
use super::outputs::load_headers::LoadHeaders;
use super::page_guard::foreign_page;
use super::peer_bytes::TrackedBody;
use super::plain::RequestFormat;
use super::scorer::{Asked, Scoring, no_retrieval};
use super::traffic::Protocol;
use super::wishes::CallerOptions;
use super::{node_view, rows};
use crate::answer::{Answer, Refusal};
use crate::request;

/// Paths that need no token and no request slot.
const OPEN: [&str; 4] = ["/health", "/ready", "/v2/health/live", "/v2/health/ready"];

/// The state behind the routes.
pub struct Front<S> {
    /// Scores requests.
    pub scoring: Arc<S>,
    door: Arc<Door>,
    load: Arc<LoadHeaders>,
}

impl<S> Clone for Front<S> {
    fn clone(&self) -> Self {
        Self { scoring: self.scoring.clone(), door: self.door.clone(), load: self.load.clone() }
    }
}

/// How handlers receive the state.
pub type At<S> = Shared<Front<S>>;

/// Serves HTTP until `shutdown`, then drains.
///
/// # Errors
/// If the TLS certificate or key cannot be used.
pub async fn serve_http<S: Scoring>(
    listener: TcpListener,
    scoring: Arc<S>,
    door: Arc<Door>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let builder = builder(&door.limits);
    // Any page in a browser of this machine reaches a loopback address; a token keeps all of them out.
    let is_guarded = door.token.is_none() && listener.local_addr().is_ok_and(|at| at.ip().is_loopback());
    let router =
        TowerToHyperService::new(router(Front { scoring, door: door.clone(), load: Arc::default() }));
    let at_door = door.clone();
    let talk = move |peer: Peer, leave: Leave| {
        let (router, builder, activity) = (router.clone(), builder.clone(), leave.activity.clone());
        let (door, turn) = (at_door.clone(), leave.turn.clone());
        async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let (open_request, door, router) = (activity.enter(), door.clone(), router.clone());
                let turn = turn.clone();
                async move {
                    let path = request.uri().path();
                    let mut counting = door.traffic().request(Protocol::Http);
                    if ["/score", "/retrieve", "/recommend"].contains(&path) || path.ends_with("/infer") {
                        counting.scored();
                    }
                    let foreign = if is_guarded { foreign_page(request.headers()) } else { None };
                    let is_known = foreign.is_none() && door.has_token(request.headers());
                    if is_known {
                        open_request.admit();
                    }
                    let mut response = if let Some(text) = foreign {
                        failed(StatusCode::FORBIDDEN, &text)
                    } else if is_known || OPEN.contains(&path) {
                        router.call(request).await?
                    } else {
                        drop(request);
                        door.refuse_token().await;
                        unknown_caller()
                    };
                    counting.answered(response.status().as_u16());
                    if turn.is_over() {
                        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(
                        response.map(|body| TrackedBody::new(body, open_request.begin_answer())),
                    )
                }
            });
            leave
                .drive(builder.serve_connection(peer, service), |connection| connection.graceful_shutdown())
                .await;
        }
    };
    connections::serve(listener, door, Protocol::Http, shutdown, talk).await
}

fn builder(limits: &DoorLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // This timeout also runs while the connection is idle; the time for headers alone is limited by
        // `Activity::stuck`.
        .header_read_timeout(Duration::from_millis(limits.idle_ms_max))
        .max_buf_size(limits.header_bytes_max as usize);
    builder
}

fn router<S: Scoring>(front: Front<S>) -> Router {
    let not_found = || async { failed(StatusCode::NOT_FOUND, "unknown path; help: GET /v2 lists the paths") };
    let wrong_method = || async {
        let text = "this path needs another method; help: GET /v2 lists the paths with their methods";
        failed(StatusCode::METHOD_NOT_ALLOWED, text)
    };
    Router::new()
        .merge(node_view::router())
        .route("/v2/models/{name}/infer", post(infer::<S>))
        .route("/v2/models/{name}/versions/{version}/infer", post(infer::<S>))
        .route("/score", post(score::<S>))
        .route("/retrieve", post(retrieve::<S>))
        .route("/recommend", post(recommend::<S>))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .with_state(front)
}

/// Builds a response.
pub fn response(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Builds a JSON response.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    response(status, "application/json", value.to_string())
}

/// Builds a JSON error.
pub fn failed(status: StatusCode, text: &str) -> Response {
    json_response(status, &json!({ "error": text }))
}

fn unknown_caller() -> Response {
    let mut response = failed(StatusCode::UNAUTHORIZED, NO_TOKEN);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Builds the JSON error of a refusal.
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

/// Returns the length of a body's JSON from the header; `None` if the whole body is JSON.
fn json_end(headers: &HeaderMap) -> Result<Option<usize>, Refusal> {
    let Some(header) = headers.get(json::JSON_BYTES) else { return Ok(None) };
    let bytes = header.to_str().ok().and_then(|text| text.parse().ok());
    let bad_header =
        || Refusal::Bad(format!("{} is {header:?}, expected a number of bytes", json::JSON_BYTES));
    bytes.map(Some).ok_or_else(bad_header)
}

/// The model and version in a path.
#[derive(serde::Deserialize)]
pub struct Of {
    /// The model.
    pub name: String,
    /// The version; empty for any.
    #[serde(default)]
    pub version: String,
}

async fn infer<S: Scoring>(Shared(front): At<S>, Path(target): Path<Of>, request: Request<Body>) -> Response {
    let asked = match Asked::of(&*front.scoring, &target.name) {
        Ok(asked) => asked,
        Err(refusal) => return refused(&refusal),
    };
    let json_end = json_end(request.headers());
    let format = RequestFormat::Tensors(*json_end.as_ref().unwrap_or(&None));
    let decode = |body: &[u8], naming: &Naming, options: CallerOptions| {
        let (json, raw) = json::parts(body, json_end?)?;
        json::decode(json, raw, naming, &target.version, options)
    };
    front.answer(asked, (request, format), decode, json::encode).await
}

async fn score<S: Scoring>(Shared(front): At<S>, request: Request<Body>) -> Response {
    let asked = Asked::Scores(front.scoring.naming());
    front.answer(asked, (request, RequestFormat::Rows), decode_rows, json::encode_scores).await
}

async fn retrieve<S: Scoring>(Shared(front): At<S>, request: Request<Body>) -> Response {
    let Some(retrieval) = front.scoring.retrieval() else { return refused(&no_retrieval()) };
    let asked = Asked::Items(retrieval);
    front.answer(asked, (request, RequestFormat::Rows), decode_rows, json::encode_items).await
}

async fn recommend<S: Scoring>(Shared(front): At<S>, request: Request<Body>) -> Response {
    let Some(ranking) = front.scoring.recommending() else { return refused(&no_retrieval()) };
    let asked = Asked::Ranked(ranking);
    front.answer(asked, (request, RequestFormat::Rows), decode_rows, json::encode_ranked).await
}

fn decode_rows(
    body: &[u8],
    naming: &Naming,
    options: CallerOptions,
) -> Result<(request::Request, Form), Refusal> {
    let rows::ParsedRows { id, sides, options, wanted } = rows::decode(body, naming, options)?;
    let (id, outputs) = (infer::id_of(&id)?, wanted.outputs(naming.inputs().labels.len()));
    let raw = vec![false; outputs.len()];
    let features = options.wishes.features;
    let form = Form { id: id.clone(), candidates: sides.candidates, outputs, raw, features };
    Ok((infer::request(naming, id, sides, options), form))
}

impl<S: Scoring> Front<S> {
    /// Decodes a request, has it answered, and encodes the answer.
    async fn answer(
        &self,
        asked: Asked,
        (request, format): (Request<Body>, RequestFormat),
        decode: impl FnOnce(&[u8], &Naming, CallerOptions) -> Result<(request::Request, Form), Refusal>,
        encode: impl FnOnce(&Form, &Answer, &Naming) -> Result<Written, Refusal>,
    ) -> Response {
        let arrived = Instant::now();
        if let Some(coding) = request.headers().get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
            let text = format!("unsupported content-encoding {coding:?}; help: send the body uncompressed");
            return failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, &text);
        }
        let (shown, naming) = (asked.shown(&*self.scoring), asked.naming());
        let options = CallerOptions::of(request.headers());
        let (body, _slot) = match self.body(request, naming.inputs().limits.message_bytes_max).await {
            Ok(body) => body,
            Err(response) => return *response,
        };
        let decode_began = Instant::now();
        self.scoring.read(decode_began - arrived);
        let decoded = options.and_then(|options| decode(&body, naming, options));
        self.door.traffic().decoded(decode_began);
        let decoded = decoded.and_then(|(mut request, form)| {
            request.wishes.deadline_us = left_us(request.wishes.deadline_us, arrived)?;
            Ok((request, form))
        });
        let (request, form) = match decoded {
            Ok(decoded) => decoded,
            Err(refusal) => return refused(&refusal),
        };
        let kept = shown.and_then(|shown| shown.keep(&request, format, &body));
        drop(body);
        let result = asked.answer(&*self.scoring, request).await;
        let mut response = written(result.and_then(|answer| {
            let reply = encode(&form, &answer, naming)?;
            if let Some((shown, kept)) = shown.zip(kept) {
                shown.note(kept, form.id, answer);
            }
            Ok(reply)
        }));
        self.load.add_text(response.headers_mut(), || self.scoring.load());
        response
    }

    /// Reads a request's body, bounded in size and time, and takes a request slot.
    pub async fn body(
        &self,
        request: Request<Body>,
        bytes_max: usize,
    ) -> Result<(Bytes, OwnedSemaphorePermit), Box<Response>> {
        let slot = self.door.request().map_err(|refusal| Box::new(refused(&refusal)))?;
        let limits = self.door.limits;
        let bytes_max = limits.http_bytes_max.min(bytes_max);
        let wait = Duration::from_millis(limits.arrival_wait_ms_max);
        match timeout(wait, collect(request.into_body(), bytes_max)).await {
            Ok(Ok(Some(body))) => Ok((body, slot)),
            Ok(Ok(None)) => {
                let text = format!("the body is larger than {bytes_max} bytes; help: split the request");
                Err(Box::new(failed(StatusCode::PAYLOAD_TOO_LARGE, &text)))
            }
            Ok(Err(error)) => {
                Err(Box::new(failed(StatusCode::BAD_REQUEST, &format!("the body did not arrive: {error}"))))
            }
            Err(_) => {
                let text =
                    format!("the body did not arrive completely within {} ms", limits.arrival_wait_ms_max);
                Err(Box::new(failed(StatusCode::REQUEST_TIMEOUT, &text)))
            }
        }
    }
}

/// Reads a body; returns `None` if it is larger than `bytes_max`. Frames are joined as they come, because each
/// takes memory of its own, however short it is.
async fn collect(mut body: Body, bytes_max: usize) -> Result<Option<Bytes>, axum::Error> {
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if data.len() > bytes_max - first.len() - joined.len() {
            return Ok(None);
        }
        if first.is_empty() && joined.is_empty() {
            // A body in one frame is not copied.
            first = data;
        } else {
            joined.extend_from_slice(&std::mem::take(&mut first));
            joined.extend_from_slice(&data);
        }
    }
    Ok(Some(if joined.is_empty() { first } else { joined.freeze() }))
}
