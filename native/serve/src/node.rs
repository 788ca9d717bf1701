//! A node: a front with a model name, served over gRPC and HTTP. Does not know where versions come from.

mod recommend;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use streamlearn_table::take_slices;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

use crate::answer::{Answer, Refusal};
use crate::features::reader::FeatureReader;
use crate::front::Front;
use crate::impression_log::Shown;
use crate::inputs::{Input, Inputs};
use crate::list_source::ListSource;
use crate::load::NodeLoad;
use crate::protocol::{
    Door, Naming, Scoring, State, item_labels, no_pieces, no_retrieval, serve_grpc, serve_http,
};
use crate::request::{Request, Wishes};
use crate::split::{PeerDoor, PieceAnswer, Splitter};

/// The time slices of the threads that accept requests: the shortest of Linux, so that they get the processor
/// at once from the lanes. Most of their work is shorter.
const SLICE: Duration = Duration::from_micros(100);

/// Renders metrics in the Prometheus text format.
pub type Metrics = Box<dyn Fn() -> String + Send + Sync>;

/// A front with a model name.
pub struct Node {
    front: Arc<Front>,
    naming: Arc<Naming>,
    metrics: Metrics,
    is_ready: AtomicBool,
    was_ready: AtomicBool,
    stale: Mutex<Option<String>>,
    aside: Mutex<Option<String>>,
    shown: OnceLock<Arc<Shown>>,
    features: OnceLock<Arc<FeatureReader>>,
    splitter: OnceLock<Arc<Splitter>>,
    retrieval: OnceLock<Retrieval>,
    lists: OnceLock<Arc<ListSource>>,
}

/// The model that finds items: a front of its own.
struct Retrieval {
    front: Arc<Front>,
    naming: Arc<Naming>,
    /// The names of requests whose items are ranked, and the place of each of the towers' columns of users among those
    /// of the model that ranks; `None` if that model does not read them, or its items have no library.
    ranking: Option<(Arc<Naming>, Vec<usize>)>,
}

impl Node {
    /// Creates a node that is not ready.
    ///
    /// # Errors
    /// If two inputs have the same name.
    pub fn new(model: &str, front: Arc<Front>, metrics: Metrics) -> Result<Self, String> {
        let naming = Arc::new(Naming::new(model, front.inputs().clone())?);
        let (is_ready, stale, shown) = (AtomicBool::new(false), Mutex::default(), OnceLock::new());
        let (was_ready, aside) = (AtomicBool::new(false), Mutex::default());
        let (features, splitter, retrieval) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Self {
            front,
            naming,
            metrics,
            is_ready,
            was_ready,
            stale,
            aside,
            shown,
            features,
            splitter,
            retrieval,
            lists: OnceLock::new(),
        })
    }

    /// Finds items from now on, as model MODEL.retrieve, by a front whose outputs are vectors of users; only the first
    /// call has an effect.
    ///
    /// # Errors
    /// If two inputs have the same name.
    pub fn retrieve_by(&self, front: Arc<Front>) -> Result<(), String> {
        let inputs = Inputs { labels: item_labels(), ..Inputs::clone(front.inputs()) };
        let naming = Arc::new(Naming::new(format!("{}.retrieve", self.naming.model()), Arc::new(inputs))?);
        let ranked = &self.naming.inputs().user;
        let place = |input: &Input| ranked.iter().position(|other| other.name == input.name);
        let places: Option<Vec<usize>> = front.inputs().user.iter().map(place).collect();
        let ranking = self.naming.ranking()?.map(Arc::new).zip(places);
        front.rest_for(self.front.readers());
        let _ = self.retrieval.set(Retrieval { front, naming, ranking });
        Ok(())
    }

    /// Answers requests for items with lists from now on, where they may be; only the first call has an effect.
    pub fn answer_lists(&self, lists: Arc<ListSource>) {
        let _ = self.lists.set(lists);
    }

    /// Logs answered requests from now on; only the first call has an effect.
    pub fn write_back(&self, shown: Arc<Shown>) {
        let _ = self.shown.set(shown);
    }

    /// Computes columns that requests lack from now on; only the first call has an effect.
    pub fn compute(&self, features: Arc<FeatureReader>) {
        let _ = self.features.set(features);
    }

    /// From now on, splits requests into at most `pieces_max` pieces, and takes pieces of peers. Only the first call has
    /// an effect.
    pub fn split(&self, pieces_max: usize, door: PeerDoor) -> &Arc<Splitter> {
        self.splitter.get_or_init(|| Arc::new(Splitter::new(self.front.clone(), pieces_max, door)))
    }

    /// Returns what splits its requests, if they are split.
    pub fn splitter(&self) -> Option<&Arc<Splitter>> {
        self.splitter.get()
    }

    /// Refuses requests while the node is starting: no move of the pointer waits for it, so it must not answer with
    /// what it has staged.
    fn check_started(&self) -> Result<(), Refusal> {
        if self.was_ready.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Refusal::Away("the node is starting; help: ask again when it is ready".to_owned()))
    }

    /// Answers a request whose columns are all there, but for those that the node computes.
    async fn computed_and_scored(&self, mut request: Request) -> Result<Answer, Refusal> {
        let Some(reader) = self.features.get() else { return self.scored(request).await };
        let began = Instant::now();
        let computed = reader.fill(&mut request, None).await?;
        request.wishes.spend(began.elapsed());
        let mut answer = self.scored(request).await?;
        answer.computed = computed.map(Box::new);
        Ok(answer)
    }

    async fn scored(&self, request: Request) -> Result<Answer, Refusal> {
        match self.splitter.get() {
            None => self.front.score(request).await,
            Some(splitter) => splitter.score(request).await,
        }
    }

    /// Sets the readiness, and the reason for staleness, if any.
    pub fn set_state(&self, is_ready: bool, stale: Option<String>) {
        self.is_ready.store(is_ready, Ordering::Release);
        self.was_ready.fetch_or(is_ready, Ordering::Release);
        *self.stale.lock().unwrap_or_else(PoisonError::into_inner) = stale;
    }

    /// Makes it not ready for a reason, whatever its other state; `None` ends that.
    pub fn stand_aside(&self, reason: Option<String>) {
        *self.aside.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

impl Scoring for Node {
    fn naming(&self) -> Arc<Naming> {
        self.naming.clone()
    }

    async fn score(&self, request: Request) -> Result<Answer, Refusal> {
        self.check_started()?;
        match request.left_out {
            None => self.computed_and_scored(request).await,
            Some(_) => self.filled_and_scored(request).await,
        }
    }

    fn retrieval(&self) -> Option<Arc<Naming>> {
        self.retrieval.get().map(|retrieval| retrieval.naming.clone())
    }

    async fn retrieve(&self, request: Request) -> Result<Answer, Refusal> {
        self.check_started()?;
        let lists = self.lists.get().map(Arc::as_ref);
        self.retrieval.get().ok_or_else(no_retrieval)?.retrieved(request, lists).await
    }

    fn recommending(&self) -> Option<Arc<Naming>> {
        self.retrieval.get()?.ranking.as_ref().map(|(naming, _)| naming.clone())
    }

    async fn recommend(&self, request: Request) -> Result<Answer, Refusal> {
        self.check_started()?;
        self.retrieved_and_ranked(request).await
    }

    fn retrieval_state(&self) -> State {
        let Some(Retrieval { front, .. }) = self.retrieval.get() else { return State::default() };
        let ((active, kept), statistics) = (front.versions(), front.statistics());
        State { active, kept, statistics, ..self.state() }
    }

    async fn score_piece(&self, bytes: Bytes, arrived: Instant) -> Result<PieceAnswer, Refusal> {
        self.check_started()?;
        let Some(splitter) = self.splitter.get() else { return Err(no_pieces()) };
        splitter.score_piece(&bytes, arrived).await
    }

    fn read(&self, lag: Duration) {
        self.front.readers().note(lag);
    }

    fn answered(&self) {
        self.front.readers().answered();
    }

    fn is_late(&self) -> bool {
        self.front.readers().is_late()
    }

    fn admit_unread(&self, wishes: &Wishes) -> Result<(), Refusal> {
        self.front.admit_unread(wishes)
    }

    fn shown(&self) -> Option<&Shown> {
        self.shown.get().map(Arc::as_ref)
    }

    fn state(&self) -> State {
        let (active, kept) = self.front.versions();
        let aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A node without lanes would refuse all requests.
        let has_lanes = |front: &Front| front.figures().lanes > 0;
        let is_ready = self.is_ready.load(Ordering::Acquire)
            && active.is_some()
            && has_lanes(&self.front)
            && self.retrieval.get().is_none_or(|retrieval| has_lanes(&retrieval.front))
            && aside.is_none();
        let stale = aside.or_else(|| self.stale.lock().unwrap_or_else(PoisonError::into_inner).clone());
        State { is_live: true, is_ready, stale, active, kept, statistics: self.front.statistics() }
    }

    fn load(&self) -> Option<NodeLoad> {
        self.front.load()
    }

    fn metrics(&self) -> String {
        (self.metrics)()
    }

    fn sizes(&self) -> serde_json::Value {
        self.front.sizes()
    }

    fn shadow(&self) -> serde_json::Value {
        self.front.shadow()
    }
}

/// The threads that serve a node.
pub struct Servers {
    /// The address of gRPC.
    pub grpc: SocketAddr,
    /// The address of HTTP, if it is served.
    pub http: Option<SocketAddr>,
    handle: Handle,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Servers {
    /// Serves the node at the sockets of gRPC and HTTP.
    ///
    /// # Errors
    /// If a socket or the TLS certificate cannot be used.
    pub fn start(
        node: Arc<Node>,
        door: Arc<Door>,
        (grpc, http): (TcpListener, Option<TcpListener>),
        threads: usize,
    ) -> io::Result<Self> {
        let (readers, others) = (node.front.readers(), AtomicUsize::new(threads));
        let begin = move || {
            take_slices(SLICE);
            // Threads that start later read no requests: they do what would block the others.
            let is_reader = |left: usize| left.checked_sub(1);
            if others.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_reader).is_ok() {
                readers.add_reader();
            }
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("front")
            .global_queue_interval(1)
            .on_thread_start(begin)
            .enable_all()
            .build()?;
        let addresses = (grpc.local_addr()?, http.as_ref().map(TcpListener::local_addr).transpose()?);
        let handle = runtime.handle().clone();
        let entered = handle.enter();
        let listener = |socket: TcpListener| {
            socket.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(socket)
        };
        let (grpc, http) = (listener(grpc)?, http.map(listener).transpose()?);
        drop(entered);
        let (stop, stopped) = watch::channel(());
        let until = |mut stopped: watch::Receiver<()>| async move {
            // Either the sender is dropped or it signals; both mean stop.
            let _ = stopped.changed().await;
        };
        let thread = std::thread::Builder::new().name("front".into()).spawn(move || {
            take_slices(SLICE);
            runtime.block_on(async move {
                let by_grpc = serve_grpc(grpc, node.clone(), door.clone(), until(stopped.clone()));
                match http {
                    Some(http) => {
                        let by_http = serve_http(http, node, door, until(stopped));
                        tokio::try_join!(by_grpc, by_http).map(|_| ())
                    }
                    None => by_grpc.await,
                }
            })
        })?;
        Ok(Self { grpc: addresses.0, http: addresses.1, handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a future on the servers' threads.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(future);
    }

    /// Whether a thread takes up work within `wait`.
    pub fn works(&self, wait: Duration) -> bool {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.handle.spawn(async move { sender.send(()) });
        receiver.recv_timeout(wait).is_ok()
    }

    /// Accepts no more connections, finishes requests in progress, and stops.
    ///
    /// # Errors
    /// With the error that ended the threads earlier.
    pub fn stop(&mut self) -> io::Result<()> {
        self.stop = None;
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(io::Error::other("a thread of the front panicked")),
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
