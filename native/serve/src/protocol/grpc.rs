//! gRPC: the service of the Open Inference Protocol, health and reflection. Answers questions about the node
//! itself, and passes on requests for scores.

mod codec;
mod health;
mod reflection;

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prost::Message;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Extensions, Status};

use self::codec::Plain;
use self::health::HealthAsk;
use self::reflection::Reflect;
use super::activity::OpenRequest;
use super::body_deadline::TimedBody;
use super::connections::turn::Turn;
use super::connections::{self, Leave, Peer};
use super::door::{Door, DoorLimits, NO_TOKEN};
use super::messages::{IndexAsk, Is, ModelConfigReply, Which};
use super::outputs::load_headers::LoadHeaders;
use super::peer_bytes::TrackedBody;
use super::plain::RequestFormat;
use super::scorer::{Asked, Scoring, State, served};
use super::traffic::{Counting, Protocol};
use super::wishes::{CallerOptions, grpc_timeout_us, version_of};
use super::{NO_LOADING, describe, infer};
use crate::answer::Refusal;
use crate::request::Wishes;
use crate::split::{BACKLOG_US, METHOD, PieceAnswer, TOOK_US};

/// The prefix of the service's paths.
const SERVICE: &str = "/inference.GRPCInferenceService/";
/// The maximum size of a message that requests no scores.
const ASK_BYTES_MAX: usize = 64 << 10;
/// Bytes that a connection or request may send before they are processed.
const WINDOW_BYTES: u32 = 1 << 20;

/// The methods of all services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    ServerLive,
    ServerReady,
    ModelReady,
    ServerMetadata,
    ModelMetadata,
    ModelConfig,
    ModelStatistics,
    RepositoryIndex,
    ModelInfer,
    HealthCheck,
    HealthWatch,
    Reflect,
    ReflectAlpha,
    Piece,
}

impl Verb {
    fn from_path(path: &str) -> Result<Self, Status> {
        let unknown = || {
            let cut: String = path.chars().take(80).collect();
            Status::unimplemented(format!("unknown method {cut:?}; help: call {SERVICE}ModelInfer"))
        };
        match path {
            "/grpc.health.v1.Health/Check" => return Ok(Self::HealthCheck),
            "/grpc.health.v1.Health/Watch" => return Ok(Self::HealthWatch),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" => return Ok(Self::Reflect),
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                return Ok(Self::ReflectAlpha);
            }
            METHOD => return Ok(Self::Piece),
            _ => {}
        }
        Ok(match path.strip_prefix(SERVICE).ok_or_else(unknown)? {
            "ServerLive" => Self::ServerLive,
            "ServerReady" => Self::ServerReady,
            "ModelReady" => Self::ModelReady,
            "ServerMetadata" => Self::ServerMetadata,
            "ModelMetadata" => Self::ModelMetadata,
            "ModelConfig" => Self::ModelConfig,
            "ModelStatistics" => Self::ModelStatistics,
            "RepositoryIndex" => Self::RepositoryIndex,
            "ModelInfer" => Self::ModelInfer,
            "ModelStreamInfer" => {
                return Err(Status::unimplemented(
                    "streaming is not supported; help: call ModelInfer for each request, many at once on one channel",
                ));
            }
            "RepositoryModelLoad" | "RepositoryModelUnload" => {
                return Err(Status::unimplemented(NO_LOADING));
            }
            name if name.contains("SharedMemory") => {
                return Err(Status::unimplemented(
                    "shared memory is not supported; help: send tensors in ModelInfer",
                ));
            }
            _ => return Err(unknown()),
        })
    }

    /// Whether the method needs no token and no request slot: its answers are only yes or no. gRPC clients watch the
    /// health of a server before they send it anything, without the metadata of their calls.
    fn is_open(self) -> bool {
        matches!(self, Self::ServerLive | Self::ServerReady | Self::HealthCheck | Self::HealthWatch)
    }
}

/// Serves gRPC until `shutdown`, then drains.
///
/// # Errors
/// If the TLS certificate or key cannot be used.
pub async fn serve_grpc<S: Scoring>(
    listener: TcpListener,
    scoring: Arc<S>,
    door: Arc<Door>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let builder = builder(&door.limits);
    let (reflect, reflect_alpha) = (reflection::v1(), reflection::v1alpha());
    let front =
        Arc::new(GrpcFront { scoring, door: door.clone(), load: Arc::default(), reflect, reflect_alpha });
    let talk = move |peer: Peer, leave: Leave| {
        let (front, builder, activity) = (front.clone(), builder.clone(), leave.activity.clone());
        let turn = leave.turn.clone();
        async move {
            let service = service_fn(|request| {
                let (front, open_request, turn) = (front.clone(), activity.enter(), turn.clone());
                async move {
                    let response = front.answer(request, &open_request, turn).await;
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
    connections::serve(listener, door, Protocol::Grpc, shutdown, talk).await
}

fn builder(limits: &DoorLimits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_max)
        // Callers cancel what is late before it is accepted here. With hyper's 20, that would soon end their connection.
        .max_pending_accept_reset_streams((2 * limits.streams_max as usize).max(20))
        .max_header_list_size(limits.header_bytes_max)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .keep_alive_interval(Duration::from_millis(limits.alive_ms))
        .keep_alive_timeout(Duration::from_millis(limits.alive_wait_ms_max));
    builder
}

struct GrpcFront<S> {
    scoring: Arc<S>,
    door: Arc<Door>,
    load: Arc<LoadHeaders>,
    reflect: Reflect,
    reflect_alpha: Reflect,
}

impl<S: Scoring> GrpcFront<S> {
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        open_request: &OpenRequest,
        turn: Turn,
    ) -> Response<Body> {
        // No page of another site can send this: browsers speak HTTP/2 only over TLS, and this type only after a
        // preflight, which is refused. So Host and Origin are checked over HTTP/1.1 alone.
        let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
        if !request.headers().get(CONTENT_TYPE).is_some_and(is_grpc) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let door = self.door.clone();
        let mut counting = door.traffic().request(Protocol::Grpc);
        let response =
            self.call(request, open_request, turn, &mut counting).await.unwrap_or_else(Status::into_http);
        // Only errors have their status in the head; other statuses follow the answer.
        let status = response.headers().get("grpc-status").and_then(|status| status.to_str().ok());
        counting.answered(status.and_then(|status| status.parse().ok()).unwrap_or(0));
        response
    }

    async fn call(
        self: Arc<Self>,
        request: Request<Incoming>,
        open_request: &OpenRequest,
        turn: Turn,
        counting: &mut Counting<'_>,
    ) -> Result<Response<Body>, Status> {
        let arrived = Instant::now();
        let verb = Verb::from_path(request.uri().path())?;
        if verb == Verb::ModelInfer {
            counting.scored();
        }
        if self.door.has_token(request.headers()) {
            open_request.admit();
        } else if open_request.must_be_refused() {
            return Err(self.door.refuse_unadmitted().into());
        } else if !verb.is_open() {
            drop(request);
            self.door.refuse_token().await;
            return Err(Status::new(Code::Unauthenticated, NO_TOKEN));
        }
        let wait = Duration::from_millis(self.door.limits.arrival_wait_ms_max);
        match verb {
            // These hold no slot: a check is small, and the others may last.
            Verb::HealthCheck => {
                let request = request.map(|body| TimedBody::new(body, wait));
                let call = Call { front: self, verb, arrived, options: None };
                return Ok(small().unary(call, request).await);
            }
            Verb::HealthWatch => {
                let request = request.map(|body| TimedBody::new(body, wait));
                return Ok(small()
                    .server_streaming(Watch { front: self, turn, open: open_request.another() }, request)
                    .await);
            }
            Verb::Reflect => return Ok((self.reflect)(request.map(|body| TimedBody::new(body, wait))).await),
            Verb::ReflectAlpha => {
                return Ok((self.reflect_alpha)(request.map(|body| TimedBody::new(body, wait))).await);
            }
            _ => {}
        }
        if verb.is_open() {
            // The message is empty. Other bytes are neither awaited nor stored, so no slot is needed.
            let message: &[u8] = if request.body().is_end_stream() { &[] } else { &[0; 5] };
            let request = request.map(|_| Full::new(Bytes::from_static(message)));
            let call = Call { front: self, verb, arrived, options: None };
            return Ok(Grpc::new(Plain).unary(call, request).await);
        }
        let slot = self.door.request()?;
        let of_headers = (verb == Verb::ModelInfer).then(|| CallerOptions::of(request.headers()));
        let mut options = of_headers.transpose()?.unwrap_or_default();
        if let Some(timeout) = request.headers().get("grpc-timeout") {
            options.within_us(grpc_timeout_us(timeout.as_bytes())?);
        }
        let bytes_max = match verb {
            Verb::ModelInfer | Verb::Piece => self.scoring.naming().inputs().limits.message_bytes_max,
            _ => ASK_BYTES_MAX,
        };
        let mut request = request.map(|body| TimedBody::new(body, wait));
        if verb == Verb::ModelInfer
            && let Err(refusal) = self.glance(request.body_mut(), options.wishes, bytes_max).await
        {
            return Ok(self.with_load(Status::from(refusal).into_http()));
        }
        let call = Call { front: self.clone(), verb, arrived, options: Some(options) };
        let response = Grpc::new(Plain).max_decoding_message_size(bytes_max).unary(call, request).await;
        drop(slot);
        Ok(if verb == Verb::ModelInfer { self.with_load(response) } else { response })
    }

    /// Refuses a request by its first bytes, if the node cannot read all.
    async fn glance(
        &self,
        body: &mut TimedBody<Incoming>,
        wishes: Wishes,
        bytes_max: usize,
    ) -> Result<(), Refusal> {
        if !self.scoring.is_late() {
            return Ok(());
        }
        let wishes = infer::glance(body.first().await, wishes);
        let admitted = self.scoring.admit_unread(&wishes);
        if admitted.is_err() {
            // To leave a body unfinished is an error of the stream to h2, and of the connection after some of them.
            body.skip(bytes_max).await;
        }
        admitted
    }

    /// Adds the load to an answer's trailer, which is the head of a refusal.
    fn with_load(self: Arc<Self>, mut response: Response<Body>) -> Response<Body> {
        if response.headers().contains_key("grpc-status") {
            self.load.add_binary(response.headers_mut(), || self.scoring.load());
            return response;
        }
        response.map(|body| {
            Body::new(body.map_frame(move |frame| match frame.into_trailers() {
                Ok(mut trailer) => {
                    self.load.add_binary(&mut trailer, || self.scoring.load());
                    Frame::trailers(trailer)
                }
                Err(frame) => frame,
            }))
        })
    }

    async fn infer(&self, bytes: Bytes, options: CallerOptions, arrived: Instant) -> Result<Bytes, Refusal> {
        let asked = Asked::of(&*self.scoring, infer::model_of(&bytes)?)?;
        let (shown, naming) = (asked.shown(&*self.scoring), asked.naming());
        let decode_began = Instant::now();
        self.scoring.read(decode_began - arrived);
        let decoded = infer::decode(&bytes, naming, options);
        self.door.traffic().decoded(decode_began);
        let (mut request, form) = decoded?;
        let kept = shown.and_then(|shown| shown.keep(&request, RequestFormat::Grpc, &bytes));
        drop(bytes);
        request.wishes.deadline_us = left_us(request.wishes.deadline_us, arrived)?;
        let answer = asked.answer(&*self.scoring, request).await?;
        self.scoring.answered();
        let reply = infer::encode(&form, &answer, naming)?;
        if let Some((shown, kept)) = shown.zip(kept) {
            shown.note(kept, form.id, answer);
        }
        Ok(reply)
    }

    fn describe(&self, verb: Verb, bytes: &Bytes) -> Result<Bytes, Status> {
        let scoring = &*self.scoring;
        let reply = match verb {
            Verb::ServerLive => Is { is: scoring.state().is_live }.encode_to_vec(),
            Verb::ServerReady => Is { is: scoring.state().is_ready }.encode_to_vec(),
            Verb::ServerMetadata => describe::server().encode_to_vec(),
            Verb::ModelReady => {
                let target: Which = message(bytes)?;
                let version = version_of(&target.version)?;
                let has = |(_, state): (_, State)| state.is_ready && state.has(version);
                Is { is: served(scoring, &target.name).is_ok_and(has) }.encode_to_vec()
            }
            Verb::RepositoryIndex => {
                let ask: IndexAsk = message(bytes)?;
                describe::index(scoring, ask.ready).encode_to_vec()
            }
            Verb::ModelStatistics => {
                let target: Which = message(bytes)?;
                describe::statistics(scoring, &target.name, &target.version)?.encode_to_vec()
            }
            Verb::HealthCheck => {
                let ask: HealthAsk = message(bytes)?;
                return health::check(&ask.service, scoring);
            }
            _ => {
                let target: Which = message(bytes)?;
                let (naming, state) = served(scoring, &target.name)?;
                describe::check_version(&state, &target.version)?;
                if verb == Verb::ModelMetadata {
                    describe::metadata(&naming, &state).encode_to_vec()
                } else {
                    ModelConfigReply { config: Some(describe::config(&naming, &state)) }.encode_to_vec()
                }
            }
        };
        Ok(reply.into())
    }
}

/// gRPC for messages that are as short as those of health.
fn small() -> Grpc<Plain> {
    Grpc::new(Plain).max_decoding_message_size(health::BYTES_MAX)
}

/// Returns the rest of a deadline that counts from the arrival of a request's headers.
///
/// # Errors
/// If it has passed.
pub fn left_us(deadline_us: Option<u64>, arrived: Instant) -> Result<Option<u64>, Refusal> {
    let Some(deadline_us) = deadline_us else { return Ok(None) };
    let spent_us = u64::try_from(arrived.elapsed().as_micros()).unwrap_or(u64::MAX);
    match deadline_us.checked_sub(spent_us).filter(|&remaining| remaining > 0) {
        Some(remaining) => Ok(Some(remaining)),
        None => Err(Refusal::Late(format!(
            "the deadline of {deadline_us} us has passed: the request took {spent_us} us to arrive"
        ))),
    }
}

fn message<M: Message + Default>(bytes: &Bytes) -> Result<M, Status> {
    M::decode(bytes.clone())
        .map_err(|error| Status::invalid_argument(format!("cannot decode the message: {error}")))
}

/// A call, as tonic runs it.
struct Call<S> {
    front: Arc<GrpcFront<S>>,
    verb: Verb,
    arrived: Instant,
    options: Option<CallerOptions>,
}

impl<S: Scoring> UnaryService<Bytes> for Call<S> {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (front, verb, arrived) = (self.front.clone(), self.verb, self.arrived);
        let options = self.options.take().unwrap_or_default();
        Box::pin(async move {
            let bytes = request.into_inner();
            let reply = match verb {
                Verb::Piece => return Ok(piece_reply(front.scoring.score_piece(bytes, arrived).await?)),
                Verb::ModelInfer => front.infer(bytes, options, arrived).await?,
                _ => front.describe(verb, &bytes)?,
            };
            Ok(tonic::Response::new(reply))
        })
    }
}

/// The reply to a piece: its scores, with the load of this node in headers.
fn piece_reply(answer: PieceAnswer) -> tonic::Response<Bytes> {
    let PieceAnswer { scores, backlog_us, took_us } = answer;
    let headers = HeaderMap::from_iter([(BACKLOG_US, backlog_us.into()), (TOOK_US, took_us.into())]);
    tonic::Response::from_parts(MetadataMap::from_headers(headers), scores, Extensions::default())
}

/// A call that watches the health of a service.
struct Watch<S> {
    front: Arc<GrpcFront<S>>,
    turn: Turn,
    open: OpenRequest,
}

impl<S: Scoring> ServerStreamingService<Bytes> for Watch<S> {
    type Response = Bytes;
    type ResponseStream = health::Changes;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (front, turn, open) = (self.front.clone(), self.turn.clone(), self.open.another());
        Box::pin(async move {
            let ask: HealthAsk = message(request.get_ref())?;
            Ok(tonic::Response::new(health::changes(ask.service, front.scoring.clone(), turn, open)))
        })
    }
}
