//! Avro records to columns and back.
