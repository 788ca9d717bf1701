//! Bindings of the lists of candidates that a node answers with.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_serve::features::state_source::StateGroup;
use streamlearn_serve::list_source::{ListSource, OUTCOMES, UsableVersions};
use streamlearn_serve::versions::VersionName;
use streamlearn_serve::versions::candidate_list::list_bytes;

use crate::node_features::{RedisAddress, Talk, seconds, source_of};
use crate::serve::{NativeFront, NativeNode};

/// A version: its number and its identity.
type Name = (u64, u64);

#[pyclass(frozen, name = "NodeLists", module = "streamlearn._native")]
pub struct NativeNodeLists {
    source: Arc<ListSource>,
    talk: Mutex<Option<Talk>>,
}

#[pymethods]
impl NativeNodeLists {
    /// Lists come from `redis`, or from `read`, as states do; the slot `user` names users. A request waits for the first
    /// time, and a connection for the second.
    #[new]
    fn new(
        front: &NativeFront,
        user: &str,
        waits_s: (f64, f64),
        redis: Option<RedisAddress>,
        read: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (inputs, (wait_s, reach_s)) = (front.front.inputs(), waits_s);
        let (Some(items), Some(at)) =
            (&inputs.items, inputs.user.iter().position(|input| input.name == user))
        else {
            return Err(PyValueError::new_err(format!(
                "this front finds no items of users named by {user:?}"
            )));
        };
        let (source, talk) = source_of(redis, read, list_bytes(items.k_max), seconds(reach_s)?)?;
        let source = Arc::new(ListSource::new(source, seconds(wait_s)?, items.k_max, at));
        Ok(Self { source, talk: Mutex::new(talk) })
    }

    /// Has a node answer requests for items with lists from now on, where they may be.
    fn answer(&self, node: &NativeNode) {
        if let Some(talk) = self.talk.lock().unwrap_or_else(PoisonError::into_inner).take() {
            node.servers.lock().unwrap_or_else(PoisonError::into_inner).spawn(talk);
        }
        node.node.answer_lists(self.source.clone());
    }

    /// Sets where lists are.
    fn set_group(&self, name: String, partitions: u64) {
        self.source.set_group(StateGroup { name, partitions });
    }

    /// Sets the version that answers, and those whose lists may be answered meanwhile.
    fn allow(&self, answering: Name, of_lists: Vec<Name>) {
        let named = |(number, identity): Name| VersionName { number, identity };
        let of_lists = of_lists.into_iter().map(named).collect();
        self.source.allow(UsableVersions { answering: named(answering), of_lists });
    }

    /// How often each outcome came, by name, and the error that ended the last connection.
    fn figures(&self) -> (Vec<(&'static str, u64)>, String) {
        (OUTCOMES.into_iter().zip(self.source.counts()).collect(), self.source.error())
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeNodeLists>()
}
