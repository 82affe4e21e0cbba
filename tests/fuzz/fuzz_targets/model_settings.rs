#![no_main]
sconce_fuzz::fuzz_target!("model_settings");
