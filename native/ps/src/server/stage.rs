//! The stage: the installed tables and their epoch, their users, and each client's applied pushes. Tables
//! leave it only when no request uses them.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use streamlearn_table::{Pushed, TableSet};
use tokio::sync::{Mutex as AsyncMutex, watch};

use crate::epoch::{Epoch, name, stale};
use crate::refusal::{Code, Refusal};
use crate::window::Window;

use super::slices::Slices;

/// The outcome of a push.
pub type Outcome = Result<Pushed, Refusal>;
/// A client's window. The task that holds the lock applies that client's pushes.
pub type ClientWindow = Arc<AsyncMutex<Window<Outcome>>>;

/// Tables under an epoch.
pub struct Installed {
    /// The tables.
    pub tables: Arc<TableSet>,
    /// The epoch.
    pub epoch: Epoch,
    /// What is held of steps that miss slices.
    pub slices: Slices,
    windows: Mutex<HashMap<u128, ClientWindow>>,
}

#[derive(Default)]
struct StageState {
    installed: Option<Arc<Installed>>,
    newest: Option<Epoch>,
    users: usize,
}

/// The installed tables, if any.
#[derive(Default)]
pub struct Stage {
    state: Mutex<StageState>,
    released: Condvar,
    /// Incremented when tables are installed or removed.
    changes: watch::Sender<u64>,
}

/// Tables in use; dropping it releases them.
pub struct InUse {
    stage: Arc<Stage>,
    installed: Option<Arc<Installed>>,
    changes: watch::Receiver<u64>,
}

impl Installed {
    /// Returns the window of a client.
    pub fn window(&self, client: u128, clients_max: usize, window_max: u32) -> Result<ClientWindow, Refusal> {
        let mut windows = self.windows.lock().expect("no holder panics");
        let count = windows.len();
        if let Some(window) = windows.get(&client) {
            return Ok(window.clone());
        }
        if count >= clients_max {
            let text = format!("the limit of {count} clients that push in epoch {} is reached", self.epoch);
            return Err(Refusal::new(Code::TooMany, text));
        }
        let window = ClientWindow::new(AsyncMutex::new(Window::new(window_max)));
        windows.insert(client, window.clone());
        Ok(window)
    }
}

impl InUse {
    /// Returns the tables.
    pub fn installed(&self) -> &Installed {
        self.installed.as_ref().expect("only drop takes them")
    }

    /// Waits until these tables must be released.
    pub async fn is_over(&self) {
        // The sender lives in the stage, which this keeps alive.
        let _ = self.changes.clone().changed().await;
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Release the tables before the stage can report them as unused.
        self.installed = None;
        let mut state = self.stage.lock();
        state.users -= 1;
        self.stage.released.notify_all();
    }
}

impl Stage {
    fn lock(&self) -> MutexGuard<'_, StageState> {
        self.state.lock().expect("no holder panics")
    }

    /// Returns the epoch and the dims of the installed tables.
    pub fn epoch_and_dims(&self) -> (Option<Epoch>, Vec<u32>) {
        let state = self.lock();
        let dims = |installed: &Arc<Installed>| {
            installed.tables.tables().iter().map(|table| table.settings.dim as u32).collect()
        };
        let epoch = state.installed.as_ref().map(|installed| installed.epoch);
        (epoch, state.installed.as_ref().map_or(Vec::new(), dims))
    }

    /// Returns the number of clients that pushed in this epoch.
    pub fn clients(&self) -> usize {
        let installed = self.lock().installed.clone();
        installed.map_or(0, |installed| installed.windows.lock().expect("no holder panics").len())
    }

    /// Refuses a client whose epoch has ended.
    pub fn check_hello(&self, epoch: Option<Epoch>) -> Result<(), Refusal> {
        let newest = self.lock().newest;
        match epoch {
            Some(epoch) if Some(epoch) < newest => Err(stale(epoch, newest)),
            _ => Ok(()),
        }
    }

    /// Returns the tables for use, if they are at this epoch.
    pub fn take(self: &Arc<Self>, epoch: Epoch) -> Result<InUse, Refusal> {
        let mut state = self.lock();
        let Some(installed) = &state.installed else {
            if Some(epoch) < state.newest {
                return Err(stale(epoch, state.newest));
            }
            return Err(Refusal::new(
                Code::NotReady,
                format!("the shard has no tables; the request's epoch is {epoch}"),
            ));
        };
        installed.epoch.admit(epoch)?;
        let installed = Some(installed.clone());
        state.users += 1;
        Ok(InUse { stage: self.clone(), installed, changes: self.changes.subscribe() })
    }

    /// Installs tables under a newer epoch than any before, once the previous tables are unused. Slices may hold
    /// `held_bytes_max` bytes.
    pub fn install(&self, tables: Arc<TableSet>, epoch: Epoch, held_bytes_max: usize) -> Result<(), String> {
        let mut state = self.lock();
        if state.newest >= Some(epoch) {
            return Err(format!("epoch {epoch} cannot follow {}: epochs only grow", name(state.newest)));
        }
        state.newest = Some(epoch);
        let mut state = self.clear(state);
        if state.newest != Some(epoch) {
            return Err(format!("epoch {epoch} was superseded by {}", name(state.newest)));
        }
        let slices = Slices::new(tables.tables().len(), held_bytes_max);
        state.installed = Some(Arc::new(Installed { tables, epoch, slices, windows: Mutex::default() }));
        Ok(())
    }

    /// Removes the tables, once they are unused.
    pub fn uninstall(&self) {
        drop(self.clear(self.lock()));
    }

    fn clear<'a>(&'a self, mut state: MutexGuard<'a, StageState>) -> MutexGuard<'a, StageState> {
        let installed = state.installed.take();
        self.changes.send_modify(|changes| *changes += 1);
        while state.users > 0 {
            // Terminates: users finish, or stop at the change that was just signalled.
            state = self.released.wait(state).expect("no holder panics");
        }
        // Freeing many rows takes time; the lock is not held meanwhile.
        drop(state);
        drop(installed);
        self.lock()
    }
}
