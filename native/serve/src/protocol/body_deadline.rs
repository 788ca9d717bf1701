//! A body with a time limit.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// A body that fails if it does not arrive in time.
pub struct TimedBody<B> {
    body: B,
    wait: Duration,
    end: Option<Pin<Box<Sleep>>>,
}

impl<B> TimedBody<B> {
    /// Wraps a body; the time starts when it is first polled.
    pub fn new(body: B, wait: Duration) -> Self {
        Self { body, wait, end: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TimedBody<B>
where
    B::Error: std::fmt::Display,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| {
                frame.map_err(|error| Status::unavailable(format!("the request did not arrive: {error}")))
            }));
        }
        let wait = self.wait;
        let deadline = self.end.get_or_insert_with(|| Box::pin(sleep(wait)));
        match deadline.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let text = format!("the request did not arrive whole within {} ms", wait.as_millis());
                Poll::Ready(Some(Err(Status::deadline_exceeded(text))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
