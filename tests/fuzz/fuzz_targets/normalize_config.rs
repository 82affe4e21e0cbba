#![no_main]
sconce_fuzz::fuzz_target!("normalize_config");
