#![no_main]
sconce_fuzz::fuzz_target!("dense_config");
