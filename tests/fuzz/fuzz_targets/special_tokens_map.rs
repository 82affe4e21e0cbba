#![no_main]
sconce_fuzz::fuzz_target!("special_tokens_map");
