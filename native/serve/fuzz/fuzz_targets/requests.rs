//! Any bytes, from a caller to a request.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| streamlearn_serve::protocol::fuzz(bytes));
