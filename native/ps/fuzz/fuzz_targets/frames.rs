//! Any bytes, from a peer to messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| streamlearn_ps::fuzz(bytes));
