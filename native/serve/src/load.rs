//! Load: requests put on a node at times that do not depend on its answers, and what came of them. It knows no model.

mod arrivals;
mod calls;
mod chance;
mod histogram;
mod plan;
mod run;
mod tally;

pub use arrivals::{Arrival, Arrivals, Bursts, Schedule, Shape};
pub use calls::{Answered, Calls, CallsSettings, METHOD, Message};
pub use histogram::Histogram;
pub use plan::{Pace, Plan};
pub use run::{LoadError, Progress, Run};
pub use tally::{Second, Tally};
