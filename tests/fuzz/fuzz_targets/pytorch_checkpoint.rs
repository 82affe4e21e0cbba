#![no_main]
sconce_fuzz::fuzz_target!("pytorch_checkpoint");
