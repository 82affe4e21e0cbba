#![no_main]
sconce_fuzz::fuzz_target!("sentence_piece");
