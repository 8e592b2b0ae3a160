//! `TimedWrites`: a stream whose writes fail once its reader has taken nothing for a time. So a
//! client that stops to read loses its connection, and its request is aborted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream with a longest wait for its reader.
pub(crate) struct TimedWrites<S> {
    stream: S,
    wait: Duration,
    /// Since the reader takes nothing.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedWrites<S> {
    pub(crate) fn new(stream: S, wait: Duration) -> Self {
        Self { stream, wait, waiting: None }
    }

    /// What a write gives, unless it has waited for too long.
    fn timed<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let wait = self.wait;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.timed(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.timed(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.timed(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Instant;

    use axum::Router;
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use futures_util::stream;

    use crate::connections::serve_one;

    use super::*;

    /// Says when the stream that has it is dropped.
    struct Guard(Sender<()>);

    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    const WAIT: Duration = Duration::from_millis(400);

    /// A server of endless streams, with a client that has asked for one; runs both.
    fn with_client(client: impl FnOnce(TcpStream), is_dropped: impl FnOnce(Duration)) {
        let (dropped, was_dropped) = channel();
        let endless = move || {
            let guard = Guard(dropped.clone());
            let events = stream::unfold(guard, |guard| async move {
                let event = Bytes::from(vec![b'a'; 4096]);
                tokio::time::sleep(Duration::from_micros(10)).await;
                Some((Ok::<_, Infallible>(event), guard))
            });
            async { Body::from_stream(events) }
        };
        let router = Router::new().route("/", get(endless));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (served, _) = listener.accept().unwrap();
        served.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let served = tokio::net::TcpStream::from_std(served).unwrap();
            let _ = serve_one(served, router, WAIT).await;
        });
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let started = Instant::now();
        client(stream);
        was_dropped.recv_timeout(Duration::from_secs(60)).expect("it is dropped");
        is_dropped(started.elapsed());
        runtime.shutdown_background();
    }

    #[test]
    fn the_answer_to_a_client_that_does_not_read_is_dropped() {
        let mut kept = None;
        with_client(|stream| kept = Some(stream), |after| assert!(after >= WAIT, "{after:?}"));
        drop(kept);
    }

    #[test]
    fn a_client_that_reads_slowly_keeps_its_answer() {
        let reads = |mut stream: TcpStream| {
            let started = Instant::now();
            let mut some = vec![0; 1 << 20];
            while started.elapsed() < 4 * WAIT {
                assert!(stream.read(&mut some).unwrap() > 0, "it is closed");
                std::thread::sleep(WAIT / 8);
            }
        };
        with_client(reads, |after| assert!(after >= 4 * WAIT, "{after:?}"));
    }
}
