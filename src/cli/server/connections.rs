//! `Server`: connections, within a number and times.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::batches::{Batches, Held, Store, Worker, joined};
use crate::body::Bodies;
use crate::engine_thread::EngineThread;
use crate::guard::Guard;
use crate::routes::{self, App};
use crate::served::Served;
use crate::timed_writes::TimedWrites;
use vllm_batch_engine::serve::runner::Runner;

/// Longest wait for the head of a request, idle connections included.
const HEAD: Duration = Duration::from_secs(30);

/// Longest wait for a client that takes nothing of its answer.
const READ: Duration = Duration::from_secs(30);

/// Bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Fields of a request's head.
const MAX_HEADERS: usize = 128;

/// Threads that accept, parse and write. The engine has the cores.
const NUM_THREADS: usize = 2;

/// Threads that read requests: they tokenize, and decode images.
const MAX_READING: usize = 16;

/// How long a batch may take to be put away.
const LEAVING: Duration = Duration::from_secs(10);

/// Those of them that may wait for images of other hosts.
const MAX_FETCHING: usize = 8;

/// Pause where no connection can be accepted, as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

type Connection = http1::Connection<TokioIo<TimedWrites<TcpStream>>, TowerToHyperService<Router>>;

/// What flags say of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Who asks must know one of them, where there are any.
    pub api_keys: Vec<String>,
    /// Names that `Host` may have on a loopback address, beside the machine's.
    pub allowed_hosts: Vec<String>,
    /// Bytes of a body.
    pub max_body_bytes: usize,
    /// Connections at a time.
    pub max_connections: usize,
    /// Requests that are not answered, beyond which others get 503. None: any number.
    pub max_num_queued_reqs: Option<usize>,
}

/// A server whose address is bound.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

/// The thread of a server that serves.
pub struct Serving {
    thread: std::thread::JoinHandle<()>,
    stop: watch::Sender<bool>,
    /// What runs batches.
    worker: Option<(Arc<Store>, std::thread::JoinHandle<()>)>,
}

impl Server {
    /// Takes an address; connections wait until it serves.
    ///
    /// # Errors
    /// It cannot be bound.
    pub fn bind(host: &str, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((host, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// The address with its port, where the system chose that.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves a model on threads of its own. The engine is stepped by whoever runs the other half.
    ///
    /// # Errors
    /// The machine has no threads.
    pub fn serve(
        self,
        config: &ServerConfig,
        served: Served,
        engine: Runner,
        batches: Option<Batches>,
    ) -> io::Result<(Serving, EngineThread)> {
        let (engine, asker) = EngineThread::new(engine);
        let (served, bodies) = (Arc::new(served), Arc::new(Bodies::new(config.max_body_bytes)));
        let (held, worker) = match batches {
            None => (None, None),
            Some(batches) => {
                let batches = Arc::new(batches);
                let store = Arc::clone(&batches.store);
                let worker =
                    Worker::start(Arc::clone(&batches), Arc::clone(&served), asker.clone())?;
                let (names, bodies) = (served.names.clone(), Arc::clone(&bodies));
                let held = Held { batches, names, bodies };
                (Some(Arc::new(held)), Some((store, worker)))
            }
        };
        let is_local = self.address.ip().is_loopback();
        let app = Arc::new(App {
            served,
            asker,
            guard: Guard::new(
                &config.api_keys,
                is_local.then_some(config.allowed_hosts.as_slice()),
            ),
            bodies,
            max_num_queued_reqs: config.max_num_queued_reqs,
            fetching: Arc::new(Semaphore::new(MAX_FETCHING)),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(NUM_THREADS)
            .max_blocking_threads(MAX_READING)
            .thread_name("http")
            .enable_io()
            .enable_time()
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let max_connections = config.max_connections;
        let listener = self.listener;
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            let router = routes::router(app, held);
            runtime.block_on(accept_all(listener, router, max_connections, stopped));
            // Requests that hang in their threads do not hold the end up.
            runtime.shutdown_background();
        })?;
        Ok((Serving { thread, stop, worker }, engine))
    }
}

impl Serving {
    /// Accepts nothing more, and lets requests that are under way end.
    pub fn drain(&self) {
        let _ = self.stop.send(true);
        if let Some((store, _)) = &self.worker {
            store.stop();
        }
    }

    /// Waits until the batch that ran is put away, to be gone on with by a later server.
    pub fn leave_batches(self) {
        if let Some((store, worker)) = self.worker {
            store.stop();
            joined(worker, LEAVING);
        }
    }

    /// Whether the last connection is closed.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Serves a connection whose client takes nothing for no longer than `wait`.
pub(crate) fn serve_one(stream: TcpStream, router: Router, wait: Duration) -> Connection {
    let stream = TokioIo::new(TimedWrites::new(stream, wait));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(stream, TowerToHyperService::new(router))
}

async fn accept_all(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    mut stopped: watch::Receiver<bool>,
) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("it does not block");
    let (seats, graceful) = (Arc::new(Semaphore::new(max_connections)), GracefulShutdown::new());
    loop {
        let seat = Arc::clone(&seats).acquire_owned();
        let seat = tokio::select! {
            seat = seat => seat.expect("nobody closes it"),
            _ = stopped.changed() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let connection = graceful.watch(serve_one(stream, router.clone(), READ));
        tokio::spawn(async move {
            // Whoever has gone away need not be told.
            let _ = connection.await;
            drop(seat);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}
