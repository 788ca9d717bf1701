//! The frames of a file topic's log.
