#![no_main]
sconce_fuzz::fuzz_target!("layer_norm_config");
