//! Streams and bodies that report their bytes and their end to the connection's counters.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::activity::{Activity, OpenAnswer};
use super::door::Door;
use super::traffic::Protocol;

/// The largest read of a connection that is not admitted. After each, its requests are answered or refused
/// before its next bytes are read, so that they do not pile up.
const STRANGER_READ_BYTES: u64 = 4 << 10;

/// A stream that counts its bytes.
pub struct CountedStream<S> {
    stream: S,
    protocol: Protocol,
    activity: Arc<Activity>,
    door: Arc<Door>,
    is_due_to_pause: bool,
}

impl<S> CountedStream<S> {
    /// Wraps a connection's stream.
    pub fn new(stream: S, protocol: Protocol, activity: Arc<Activity>, door: Arc<Door>) -> Self {
        Self { stream, protocol, activity, door, is_due_to_pause: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.is_due_to_pause) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let filled_before = to.filled().len();
        let is_admitted = self.activity.place.is_admitted();
        let read = if is_admitted {
            Pin::new(&mut self.stream).poll_read(context, to)
        } else {
            Pin::new(&mut (&mut self.stream).take(STRANGER_READ_BYTES)).poll_read(context, to)
        };
        let bytes = to.filled().len() - filled_before;
        if bytes > 0 {
            self.is_due_to_pause = !is_admitted;
            self.activity.received(bytes);
            self.door.traffic.received(self.protocol, bytes);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.door.traffic.sent(self.protocol, bytes);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        if let Poll::Ready(Ok(bytes)) = written {
            self.door.traffic.sent(self.protocol, bytes);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// An answer's body; it counts as open until it is dropped.
pub struct TrackedBody<B> {
    body: B,
    _answering: OpenAnswer,
}

impl<B> TrackedBody<B> {
    /// Wraps the body of an answer.
    pub fn new(body: B, answering: OpenAnswer) -> Self {
        Self { body, _answering: answering }
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
