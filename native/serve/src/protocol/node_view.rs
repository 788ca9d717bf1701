//! The node's view over HTTP: health, the model, its versions and their statistics.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State as Shared};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::http::{At, Front, Of, failed, json_response, refused, response};
use super::input_names::Naming;
use super::messages::{ModelIndex, TensorMetadata};
use super::scorer::{Scoring, State, served};
use super::wishes::version_of;
use super::{NO_LOADING, describe};
use crate::answer::Refusal;

/// Routes that only read.
pub fn router<S: Scoring>() -> Router<Front<S>> {
    Router::new()
        .route("/health", get(health::<S>))
        .route("/ready", get(ready::<S>))
        .route("/versions", get(versions::<S>))
        .route("/metrics", get(metrics::<S>))
        .route("/sizes", get(sizes::<S>))
        .route("/shadow", get(shadow::<S>))
        .route("/v2", get(server))
        .route("/v2/health/live", get(live::<S>))
        .route("/v2/health/ready", get(ready::<S>))
        .route("/v2/models/stats", get(all_statistics::<S>))
        .route("/v2/models/{name}", get(metadata::<S>))
        .route("/v2/models/{name}/ready", get(model_ready::<S>))
        .route("/v2/models/{name}/config", get(config::<S>))
        .route("/v2/models/{name}/stats", get(statistics::<S>))
        .route("/v2/models/{name}/versions/{version}", get(metadata::<S>))
        .route("/v2/models/{name}/versions/{version}/ready", get(model_ready::<S>))
        .route("/v2/models/{name}/versions/{version}/config", get(config::<S>))
        .route("/v2/models/{name}/versions/{version}/stats", get(statistics::<S>))
        .route("/v2/repository/index", post(index::<S>))
        .route("/v2/repository/models/{name}/load", post(no_loading))
        .route("/v2/repository/models/{name}/unload", post(no_loading))
}

/// The paths, for people who look for one.
const PATHS: [&str; 20] = [
    "POST /score",
    "POST /retrieve",
    "POST /recommend",
    "POST /v2/models/MODEL/infer",
    "POST /v2/models/MODEL/versions/VERSION/infer",
    "GET /v2",
    "GET /v2/models/MODEL",
    "GET /v2/models/MODEL/ready",
    "GET /v2/models/MODEL/config",
    "GET /v2/models/MODEL/stats",
    "GET /v2/models/stats",
    "GET /v2/health/live",
    "GET /v2/health/ready",
    "POST /v2/repository/index",
    "GET /health",
    "GET /ready",
    "GET /versions",
    "GET /sizes",
    "GET /shadow",
    "GET /metrics",
];

async fn no_loading() -> Response {
    failed(StatusCode::NOT_IMPLEMENTED, NO_LOADING)
}

async fn sizes<S: Scoring>(Shared(front): At<S>) -> Response {
    json_response(StatusCode::OK, &front.scoring.sizes())
}

async fn shadow<S: Scoring>(Shared(front): At<S>) -> Response {
    json_response(StatusCode::OK, &front.scoring.shadow())
}

async fn server() -> Response {
    let server = describe::server();
    json_response(
        StatusCode::OK,
        &json!({
            "name": server.name, "version": server.version, "extensions": server.extensions, "paths": PATHS,
        }),
    )
}

fn yes_or_no(is: bool, value: &Value) -> Response {
    json_response(if is { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, value)
}

async fn health<S: Scoring>(Shared(front): At<S>) -> Response {
    let State { is_live, is_ready, stale, .. } = front.scoring.state();
    let mut value = json!({ "live": is_live, "ready": is_ready });
    if let Some(stale) = stale {
        value["stale"] = stale.into();
    }
    yes_or_no(is_live, &value)
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

async fn model_ready<S: Scoring>(Shared(front): At<S>, Path(target): Path<Of>) -> Response {
    let served = served(&*front.scoring, &target.name);
    match served.and_then(|(_, state)| Ok((state, version_of(&target.version)?))) {
        Ok((state, version)) => {
            let is_ready = state.is_ready && state.has(version);
            yes_or_no(is_ready, &json!({ "name": target.name, "ready": is_ready }))
        }
        Err(refusal) => refused(&refusal),
    }
}

/// Returns the naming and state, if the model and version in the path are served here.
fn checked<S: Scoring>(front: &Front<S>, target: &Of) -> Result<(Arc<Naming>, State), Refusal> {
    let (naming, state) = served(&*front.scoring, &target.name)?;
    describe::check_version(&state, &target.version)?;
    Ok((naming, state))
}

async fn metadata<S: Scoring>(Shared(front): At<S>, Path(target): Path<Of>) -> Response {
    let (naming, state) = match checked(&front, &target) {
        Ok(checked) => checked,
        Err(refusal) => return refused(&refusal),
    };
    let metadata = describe::metadata(&naming, &state);
    let tensor = |tensor: &TensorMetadata| json!({ "name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape });
    let tensors = |tensors: &[TensorMetadata]| tensors.iter().map(tensor).collect::<Vec<Value>>();
    let (inputs, outputs) = (tensors(&metadata.inputs), tensors(&metadata.outputs));
    let value = json!({
        "name": metadata.name, "versions": metadata.versions, "platform": metadata.platform,
        "inputs": inputs, "outputs": outputs,
    });
    json_response(StatusCode::OK, &value)
}

async fn config<S: Scoring>(Shared(front): At<S>, Path(target): Path<Of>) -> Response {
    match checked(&front, &target) {
        Ok((naming, state)) => json_response(StatusCode::OK, &json!(describe::config(&naming, &state))),
        Err(refusal) => refused(&refusal),
    }
}

async fn statistics<S: Scoring>(Shared(front): At<S>, Path(target): Path<Of>) -> Response {
    match describe::statistics(&*front.scoring, &target.name, &target.version) {
        Ok(statistics) => json_response(StatusCode::OK, &json!(statistics)),
        Err(refusal) => refused(&refusal),
    }
}

async fn all_statistics<S: Scoring>(front: At<S>) -> Response {
    statistics(front, Path(Of { name: String::new(), version: String::new() })).await
}

/// The maximum length of a body that asks for the index.
const INDEX_BYTES_MAX: usize = 1 << 16;

/// The request of the index.
#[derive(Default, serde::Deserialize)]
struct IndexAsk {
    #[serde(default)]
    ready: bool,
}

async fn index<S: Scoring>(Shared(front): At<S>, request: Request<Body>) -> Response {
    let (body, _slot) = match front.body(request, INDEX_BYTES_MAX).await {
        Ok(body) => body,
        Err(response) => return *response,
    };
    let request = if body.is_empty() { Ok(IndexAsk::default()) } else { serde_json::from_slice(&body) };
    match request {
        Ok(IndexAsk { ready }) => {
            let models: Vec<ModelIndex> = describe::index(&*front.scoring, ready).models;
            json_response(StatusCode::OK, &json!(models))
        }
        Err(error) => refused(&Refusal::Bad(format!("invalid body: {error}"))),
    }
}

async fn versions<S: Scoring>(Shared(front): At<S>) -> Response {
    let (naming, state) = (front.scoring.naming(), front.scoring.state());
    let value = json!({
        "model": naming.model(), "active": state.active, "kept": state.kept, "stale": state.stale,
    });
    json_response(StatusCode::OK, &value)
}

async fn metrics<S: Scoring>(Shared(front): At<S>) -> Response {
    response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", front.scoring.metrics())
}
