//! A body with a time limit, whose beginning can be seen first.

use std::future::poll_fn;
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
    /// The first frame, if it was seen and not yet read.
    first: Option<Result<Frame<Bytes>, Status>>,
}

impl<B> TimedBody<B> {
    /// Wraps a body; the time starts when it is first polled.
    pub fn new(body: B, wait: Duration) -> Self {
        Self { body, wait, end: None, first: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> TimedBody<B>
where
    B::Error: std::fmt::Display,
{
    /// Returns the first bytes, as many as came together; none if they did not come in time. They stay in the body.
    pub async fn first(&mut self) -> &[u8] {
        self.first = poll_fn(|context| Pin::new(&mut *self).poll_frame(context)).await;
        let frame = self.first.as_ref().and_then(|frame| frame.as_ref().ok());
        frame.and_then(|frame| frame.data_ref()).map_or(&[], |bytes| bytes)
    }

    /// Receives the body and keeps nothing of it, unless it is longer than `bytes_max` or does not come in time.
    pub async fn skip(&mut self, bytes_max: usize) {
        let mut received = 0;
        while received <= bytes_max {
            let frame = poll_fn(|context| Pin::new(&mut *self).poll_frame(context)).await;
            let Some(Ok(frame)) = frame else { return };
            received += frame.data_ref().map_or(0, Bytes::len);
        }
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
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
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
        self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.first.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    type Sent = Result<Frame<Bytes>, Status>;

    fn body() -> (mpsc::UnboundedSender<Sent>, TimedBody<impl Body<Data = Bytes, Error = Status> + Unpin>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let body = StreamBody::new(UnboundedReceiverStream::new(receiver));
        (sender, TimedBody::new(body, Duration::from_secs(60)))
    }

    fn data(text: &'static str) -> Sent {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    #[tokio::test]
    async fn what_was_seen_first_is_still_read_first() {
        let (sender, mut body) = body();
        let late = sender.clone();
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            ["ab", "cd"].into_iter().for_each(|text| late.send(data(text)).unwrap());
        });
        assert_eq!(body.first().await, b"ab");
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "ab");
        assert_eq!(body.first().await, b"cd");
        assert!(!body.is_end_stream() && body.size_hint().exact().is_none());
        drop(sender);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "cd");
    }

    #[tokio::test]
    async fn an_error_that_was_seen_first_is_read_and_a_body_is_skipped_to_its_end() {
        let (sender, mut failed) = body();
        sender.send(Err(Status::unavailable("gone"))).unwrap();
        assert_eq!(failed.first().await, b"");
        assert!(failed.collect().await.is_err());
        let (sender, mut skipped) = body();
        ["ab", "cd", "ef"].into_iter().for_each(|text| sender.send(data(text)).unwrap());
        assert_eq!(skipped.first().await, b"ab");
        skipped.skip(3).await;
        assert_eq!(skipped.first().await, b"ef", "it is longer than that");
        drop(sender);
        skipped.skip(100).await;
        assert!(skipped.frame().await.is_none());
    }
}
