#![no_main]
sconce_fuzz::fuzz_target!("completed_run");
