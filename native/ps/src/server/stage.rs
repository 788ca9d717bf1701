//! The stage: the tables that are installed and the epoch they stand at, who uses them, and which pushes they have
//! learned. Tables leave it only when nobody uses them.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use streamlearn_table::{Pushed, TableSet};
use tokio::sync::{Mutex as AsyncMutex, watch};

use crate::epoch::{Epoch, name};
use crate::refusal::{Code, Refusal};
use crate::window::Window;

/// What was answered to a push.
pub type Outcome = Result<Pushed, Refusal>;
/// A client's window. Whoever holds it applies that client's pushes.
pub type ClientWindow = Arc<AsyncMutex<Window<Outcome>>>;

/// Tables under an epoch.
pub struct Installed {
    /// The tables.
    pub tables: Arc<TableSet>,
    /// The epoch.
    pub epoch: Epoch,
    windows: Mutex<HashMap<u128, ClientWindow>>,
}

#[derive(Default)]
struct StageState {
    installed: Option<Arc<Installed>>,
    newest: Option<Epoch>,
    users: usize,
}

/// The tables there are, if any.
#[derive(Default)]
pub struct Stage {
    state: Mutex<StageState>,
    left: Condvar,
    /// How often tables came or went.
    changes: watch::Sender<u64>,
}

/// Tables in use; dropping it lets go of them.
pub struct InUse {
    stage: Arc<Stage>,
    installed: Option<Arc<Installed>>,
    changes: watch::Receiver<u64>,
}

impl Installed {
    /// The window of a client.
    pub fn window(&self, client: u128, clients_max: usize, window_max: u32) -> Result<ClientWindow, Refusal> {
        let mut windows = self.windows.lock().expect("no holder panics");
        let count = windows.len();
        if let Some(window) = windows.get(&client) {
            return Ok(window.clone());
        }
        if count >= clients_max {
            let text = format!("{count} clients pushed in epoch {}, the most there may be", self.epoch);
            return Err(Refusal::new(Code::TooMany, text));
        }
        let window = ClientWindow::new(AsyncMutex::new(Window::new(window_max)));
        windows.insert(client, window.clone());
        Ok(window)
    }
}

impl InUse {
    /// The tables.
    pub fn installed(&self) -> &Installed {
        self.installed.as_ref().expect("only dropping it takes them")
    }

    /// Wait until these tables are to leave.
    pub async fn is_over(&mut self) {
        // The sender lives in the stage, which this holds.
        let _ = self.changes.changed().await;
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Before the stage may say that nobody uses them.
        self.installed = None;
        let mut state = self.stage.lock();
        state.users -= 1;
        self.stage.left.notify_all();
    }
}

impl Stage {
    fn lock(&self) -> MutexGuard<'_, StageState> {
        self.state.lock().expect("no holder panics")
    }

    /// The epoch the tables stand at, and the dims of the tables.
    pub fn stands_at(&self) -> (Option<Epoch>, Vec<u32>) {
        let state = self.lock();
        let dims = |installed: &Arc<Installed>| {
            installed.tables.tables().iter().map(|table| table.settings.dim as u32).collect()
        };
        let epoch = state.installed.as_ref().map(|installed| installed.epoch);
        (epoch, state.installed.as_ref().map_or(Vec::new(), dims))
    }

    /// Clients that pushed in this epoch.
    pub fn clients(&self) -> usize {
        let installed = self.lock().installed.clone();
        installed.map_or(0, |installed| installed.windows.lock().expect("no holder panics").len())
    }

    /// Whether a client that says it is in an epoch may come in: one of an epoch that is over may not.
    pub fn check_hello(&self, epoch: Option<Epoch>) -> Result<(), Refusal> {
        let newest = self.lock().newest;
        match epoch {
            Some(epoch) if Some(epoch) < newest => Err(stale(epoch, newest)),
            _ => Ok(()),
        }
    }

    /// Use the tables, if they stand at this epoch.
    pub fn take(self: &Arc<Self>, epoch: Epoch) -> Result<InUse, Refusal> {
        let mut state = self.lock();
        let Some(installed) = &state.installed else {
            if Some(epoch) < state.newest {
                return Err(stale(epoch, state.newest));
            }
            return Err(Refusal::new(
                Code::NotReady,
                format!("the shard has no tables; the epoch is {epoch}"),
            ));
        };
        if installed.epoch != epoch {
            return Err(stale(epoch, Some(installed.epoch)));
        }
        let installed = Some(installed.clone());
        state.users += 1;
        Ok(InUse { stage: self.clone(), installed, changes: self.changes.subscribe() })
    }

    /// Install tables under a newer epoch than any before, once nobody uses those of before.
    pub fn install(&self, tables: Arc<TableSet>, epoch: Epoch) -> Result<(), String> {
        let mut state = self.lock();
        if state.newest >= Some(epoch) {
            return Err(format!("epoch {epoch} cannot follow {}: epochs only grow", name(state.newest)));
        }
        state.newest = Some(epoch);
        let mut state = self.clear(state);
        if state.newest != Some(epoch) {
            return Err(format!("epoch {epoch} was overtaken by {}", name(state.newest)));
        }
        state.installed = Some(Arc::new(Installed { tables, epoch, windows: Mutex::default() }));
        Ok(())
    }

    /// Let go of the tables, once nobody uses them.
    pub fn uninstall(&self) {
        drop(self.clear(self.lock()));
    }

    fn clear<'a>(&'a self, mut state: MutexGuard<'a, StageState>) -> MutexGuard<'a, StageState> {
        let installed = state.installed.take();
        self.changes.send_modify(|changes| *changes += 1);
        while state.users > 0 {
            // Ends: users work or wait for the change that they were just told of.
            state = self.left.wait(state).expect("no holder panics");
        }
        // Many rows take their time to be freed; nobody is to wait for that.
        drop(state);
        drop(installed);
        self.lock()
    }
}

fn stale(said: Epoch, is: Option<Epoch>) -> Refusal {
    Refusal::new(Code::StaleEpoch, format!("the request is of epoch {said}, the shard's is {}", name(is)))
}
