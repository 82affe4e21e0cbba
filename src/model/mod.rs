//! Reads a model's files. Nothing here computes with tensors.

pub mod adapter;
pub mod classification;
pub mod config;
pub mod config_defaults;
pub mod families;
mod family_specific;
mod heads;
pub mod layout;
pub mod low_rank;
pub mod masked_lm;
pub mod modules;
pub mod names;
pub mod packed_weights;
mod peft_config;
mod pickle;
pub mod purpose;
mod pytorch;
pub mod spec;
pub mod static_embedding;
pub mod token_head;
mod unsupported;
pub mod weights;
