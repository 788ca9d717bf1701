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
