//! Turns: connections that were accepted before their server stood aside must leave, later ones stay.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// The state of a server: how often it has stood aside, and whether it ends.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    turn: u64,
    /// Whether all connections must leave, also those to come.
    is_leaving: bool,
    is_over: bool,
}

impl State {
    fn is_over_for(&self, number: u64) -> bool {
        self.is_over || self.is_leaving || self.turn > number
    }
}

/// The turns of one server.
#[derive(Debug, Default)]
pub struct Turns(watch::Sender<State>);

impl Turns {
    /// Makes all present connections leave, but lets them receive a last request.
    pub fn pass(&self) {
        self.0.send_modify(|state| state.turn += 1);
    }

    /// Makes all connections leave, also new ones, but lets them receive a last request.
    pub fn leave(&self) {
        self.0.send_modify(|state| state.is_leaving = true);
    }

    /// Makes all connections leave at once.
    pub fn end(&self) {
        self.0.send_modify(|state| state.is_over = true);
    }

    /// Returns the turn of a new connection.
    pub fn take(&self) -> Turn {
        let state = self.0.subscribe();
        let number = state.borrow().turn;
        Turn { state, number }
    }
}

/// The turn of a connection.
#[derive(Debug, Clone)]
pub struct Turn {
    state: watch::Receiver<State>,
    number: u64,
}

impl Turn {
    /// Whether its connection must leave.
    pub fn is_over(&self) -> bool {
        self.state.borrow().is_over_for(self.number)
    }

    /// Waits until its connection must leave.
    pub async fn over(&mut self) {
        let number = self.number;
        let _ = self.state.wait_for(|state| state.is_over_for(number)).await;
    }

    /// Waits until its connection must leave, and then for `patience`, unless the server ends.
    pub async fn over_for(&mut self, patience: Duration) {
        self.over().await;
        let _ = timeout(patience, self.state.wait_for(|state| state.is_over)).await;
    }
}
