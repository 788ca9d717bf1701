//! The tests of this crate in one binary, which is compiled and linked once.

mod churn;
mod edges;
mod hands;
mod hostile;
mod oracle;
mod plain;
mod stress;
