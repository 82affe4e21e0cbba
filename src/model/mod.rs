//! Reads a model's files. Nothing here computes with tensors.

pub mod adapter;
pub mod classification;
pub mod config;
pub mod config_defaults;
pub mod families;
mod family_specific;
mod heads;
pub mod layout;
pub mod masked_lm;
pub mod modules;
pub mod peft_config;
pub mod purpose;
pub mod spec;
pub mod static_embedding;
pub mod token_head;
mod unsupported;
