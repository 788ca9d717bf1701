//! Load: sends requests at times that do not depend on the answers, and counts the results. Knows no model.

mod arrivals;
mod calls;
mod chance;
mod histogram;
mod pacer;
mod plan;
mod posts;
mod run;
mod tally;
mod way;

pub use arrivals::{Arrival, Arrivals, Bursts, Schedule, Shape};
pub use calls::{Answered, Calls, CallsSettings, METHOD, Message};
pub use histogram::Histogram;
pub use plan::{Pace, Plan};
pub use posts::Posts;
pub use run::{LoadError, Progress, Run};
pub use tally::{Second, Tally};
pub use way::Way;
