//! The libFuzzer target named by the environment variable FUZZ.
#![no_main]

use std::sync::LazyLock;

use streamlearn_fuzz::{Target, target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ").expect("set FUZZ to the name of a target");
    target(&name).unwrap_or_else(|| panic!("unknown target {name:?}"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
