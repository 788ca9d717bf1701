//! Transport: gRPC or HTTP/1.1 connections to a node.

use std::time::Duration;

use super::calls::{Answered, Calls, Message};
use super::posts::Posts;

/// Connections to a node.
#[derive(Debug, Clone)]
pub enum Way {
    /// ModelInfer of the Open Inference Protocol over gRPC.
    Grpc(Calls),
    /// Posted bodies over HTTP/1.1.
    Http(Posts),
}

impl Way {
    /// Sends a message; `turn` picks the connection if there are several.
    pub async fn call(
        &self,
        turn: usize,
        message: Message,
        deadline: Option<Duration>,
        answer_wait_max: Duration,
    ) -> Answered {
        match self {
            Self::Grpc(calls) => calls.call(turn, message, deadline, answer_wait_max).await,
            Self::Http(posts) => posts.call(message, deadline, answer_wait_max).await,
        }
    }

    /// Sends messages concurrently, over the connections in turn; the answers are in the order of the
    /// messages.
    pub async fn call_all(&self, messages: Vec<Message>, answer_wait_max: Duration) -> Vec<Answered> {
        let calls: Vec<_> = messages
            .into_iter()
            .enumerate()
            .map(|(turn, message)| {
                let way = self.clone();
                tokio::spawn(async move { way.call(turn, message, None, answer_wait_max).await })
            })
            .collect();
        let mut answers = Vec::with_capacity(calls.len());
        for call in calls {
            // A call that panicked has no answer; its thread already printed the reason.
            answers.push(call.await.unwrap_or(Answered::Nothing));
        }
        answers
    }

    /// Encodes a message for this transport.
    ///
    /// # Errors
    /// If it is too long.
    pub fn message(&self, bytes: &[u8]) -> Result<Message, String> {
        match self {
            Self::Grpc(_) => Message::new(bytes),
            Self::Http(posts) => Ok(posts.message(bytes)),
        }
    }
}

impl From<Calls> for Way {
    fn from(calls: Calls) -> Self {
        Self::Grpc(calls)
    }
}

impl From<Posts> for Way {
    fn from(posts: Posts) -> Self {
        Self::Http(posts)
    }
}
