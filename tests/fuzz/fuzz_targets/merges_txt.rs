#![no_main]
sconce_fuzz::fuzz_target!("merges_txt");
