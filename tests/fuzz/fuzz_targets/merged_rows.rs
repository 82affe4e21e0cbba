#![no_main]
sconce_fuzz::fuzz_target!("merged_rows");
