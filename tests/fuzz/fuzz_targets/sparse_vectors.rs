#![no_main]
sconce_fuzz::fuzz_target!("sparse_vectors");
