//! The integration tests, one module per subject. They run the `sconce` binary, or call the library where a
//! promise is about its API.
//!
//! `cargo test --test integration resume::` runs one module. All of them share one binary, so that there is
//! one to link.

#![allow(unreachable_pub, reason = "nothing imports a test crate")]

mod adapters;
mod append;
mod attend;
mod bad_input;
mod cache;
mod catch_panic;
mod causal_rerankers;
mod chunks;
mod column_types;
mod config_defaults;
mod contributing;
mod cuda_kernels;
mod decoders;
mod edited;
mod embed;
mod embedded_texts;
mod fasta;
mod fields;
mod files;
mod foreign_vectors;
mod fuzz_input;
mod fuzz_model;
mod goldens;
mod heads;
mod hub;
mod hub_settings;
mod input;
mod inspect;
mod kept_fields;
mod kernels;
mod layering;
mod library;
mod long_texts;
mod masked_lm;
mod memory;
mod models_table;
mod module_fields;
mod multi_vector;
mod neighbours;
mod ops;
mod outputs;
mod own_files;
mod packed_weights;
mod pipelines;
mod pytorch;
mod quickstart;
mod real_model;
mod resume;
mod row_cache;
mod same_vector;
mod search;
mod search_conditions;
mod search_texts;
mod serve;
mod serve_errors;
mod serve_faults;
mod serve_tasks;
mod shards;
mod similarity;
mod spans;
mod sparse;
mod static_embeddings;
mod streams;
mod support;
mod t5;
mod tables;
mod terminal;
mod tokenizers;
mod towers;
mod unified;
mod unreadable;
mod updates;
mod verify;
