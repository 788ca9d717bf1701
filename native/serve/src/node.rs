//! A node: a front with a name, open to callers by gRPC and HTTP. It does not know how versions come.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::answer::{Answer, Refusal};
use crate::front::Front;
use crate::impression_log::Shown;
use crate::protocol::{Door, Naming, Scoring, State, serve_grpc, serve_http};
use crate::request::Request;

/// Gives metrics as Prometheus reads them.
pub type Metrics = Box<dyn Fn() -> String + Send + Sync>;

/// A front with a name.
pub struct Node {
    front: Arc<Front>,
    naming: Arc<Naming>,
    metrics: Metrics,
    is_ready: AtomicBool,
    stale: Mutex<Option<String>>,
    shown: OnceLock<Arc<Shown>>,
}

impl Node {
    /// A node that is not ready.
    ///
    /// # Errors
    /// When its inputs have no names of their own.
    pub fn new(model: &str, front: Arc<Front>, metrics: Metrics) -> Result<Self, String> {
        let naming = Arc::new(Naming::new(model, front.inputs().clone())?);
        let (is_ready, stale, shown) = (AtomicBool::new(false), Mutex::default(), OnceLock::new());
        Ok(Self { front, naming, metrics, is_ready, stale, shown })
    }

    /// Note answered requests from now on; only the first who asks for it is heard.
    pub fn write_back(&self, shown: Arc<Shown>) {
        let _ = self.shown.set(shown);
    }

    /// Say whether it answers requests, and why it is stale, if it is.
    pub fn set_state(&self, is_ready: bool, stale: Option<String>) {
        self.is_ready.store(is_ready, Ordering::Release);
        *self.stale.lock().unwrap_or_else(PoisonError::into_inner) = stale;
    }
}

impl Scoring for Node {
    fn naming(&self) -> Arc<Naming> {
        self.naming.clone()
    }

    fn score(&self, request: Request) -> impl Future<Output = Result<Answer, Refusal>> + Send {
        self.front.score(request)
    }

    fn shown(&self) -> Option<&Shown> {
        self.shown.get().map(Arc::as_ref)
    }

    fn state(&self) -> State {
        let (active, kept) = self.front.versions();
        // A node none of whose lanes is there would refuse all.
        let is_ready =
            self.is_ready.load(Ordering::Acquire) && active.is_some() && self.front.figures().lanes > 0;
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner).clone();
        State { is_live: true, is_ready, stale, active, kept, statistics: self.front.statistics() }
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

/// Threads that serve a node until they are stopped.
pub struct Servers {
    /// Where gRPC is served.
    pub grpc: SocketAddr,
    /// Where HTTP is served, if it is.
    pub http: Option<SocketAddr>,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Servers {
    /// Open the door at some addresses.
    ///
    /// # Errors
    /// When an address cannot be listened at, or TLS has no certificate that can be used.
    pub fn start(
        node: Arc<Node>,
        door: Arc<Door>,
        (grpc, http): (&str, Option<&str>),
        threads: usize,
    ) -> io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name("front").enable_all().build()?;
        let (grpc, http) = runtime.block_on(async {
            let grpc = TcpListener::bind(grpc).await?;
            let http = match http {
                Some(http) => Some(TcpListener::bind(http).await?),
                None => None,
            };
            Ok::<_, io::Error>((grpc, http))
        })?;
        let places = (grpc.local_addr()?, http.as_ref().map(TcpListener::local_addr).transpose()?);
        let (stop, stopped) = watch::channel(());
        let until = |mut stopped: watch::Receiver<()>| async move {
            // An error is that whoever stops has gone, and an end as well.
            let _ = stopped.changed().await;
        };
        let thread = std::thread::Builder::new().name("front".into()).spawn(move || {
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
        Ok(Self { grpc: places.0, http: places.1, stop: Some(stop), thread: Some(thread) })
    }

    /// Take no more connections, finish what was begun, and end.
    ///
    /// # Errors
    /// With what ended them before.
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
