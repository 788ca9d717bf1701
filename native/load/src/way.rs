//! A way: how a node is spoken to, by gRPC or by HTTP/1.1.

use std::time::Duration;

use super::calls::{Answered, Calls, Message};
use super::posts::Posts;

/// Connections to a node.
#[derive(Debug, Clone)]
pub enum Way {
    /// ModelInfer of the Open Inference Protocol.
    Grpc(Calls),
    /// Bodies that are posted.
    Http(Posts),
}

impl Way {
    /// Send a message; `turn` chooses the connection where there is a choice.
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

    /// Send messages at once, by connections in turn; the answers are in the order of the messages.
    pub async fn call_all(&self, messages: Vec<Message>, answer_wait_max: Duration) -> Vec<Answered> {
        let calls: Vec<_> = messages
            .into_iter()
            .enumerate()
            .map(|(turn, message)| {
                let way = self.clone();
                tokio::spawn(async move { way.call(turn, message, None, answer_wait_max).await })
            })
            .collect();
        let mut answered = Vec::with_capacity(calls.len());
        for call in calls {
            // A call that panicked has no answer, and its message said why.
            answered.push(call.await.unwrap_or(Answered::Nothing));
        }
        answered
    }

    /// A message of its bytes, for this way.
    ///
    /// # Errors
    /// It is longer than can be said.
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
