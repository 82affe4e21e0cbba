//! Which model to load, and how. An option that is not given is resolved from the model's files.

use std::path::PathBuf;

use crate::hub::Source;
use crate::model::layout::{COLBERT_LINEAR, SPARSE_LINEAR};
use crate::nn::{ComputeDtype, DeviceRequest, OutputKind, Pooling};
use crate::text::{PairTruncation, TruncationSide};

/// Which model to load, and replacements for parts of it.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// A directory, or an id on the hub.
    pub source: Source,
    /// A config.json instead of the model's own (`--config`).
    pub config: Option<PathBuf>,
    /// The seed of random weights instead of the checkpoint's (`--random-weights`).
    pub random_weights: Option<u64>,
    /// The task whose adapter is merged into the weights (`--task`).
    pub task: Option<String>,
    /// A tokenizer instead of the model's own (`--tokenizer`).
    pub tokenizer: Option<PathBuf>,
    /// Maximum tokens of a text instead of the model's own limit (`--max-length`).
    pub max_length: Option<usize>,
    /// The side at which texts are truncated, instead of the model's own (`--truncation-side`).
    pub truncation_side: Option<TruncationSide>,
    /// Whether packed weights are kept in the user's cache and mapped from there (`--no-weight-cache` for
    /// not).
    pub weight_cache: bool,
    /// Which text of a pair is truncated (`--truncation`).
    pub pair_truncation: PairTruncation,
    /// The pooling instead of the model's own (`--pooling`).
    pub pooling: Option<Pooling>,
    /// The outputs of one forward pass, in place of what the pooling gives (`--outputs`); empty: that.
    pub outputs: Vec<OutputKind>,
    /// Whether all texts are queries: a sparse encoder whose queries need no encoder is loaded without it.
    pub only_queries: bool,
    /// Maximum memory of the process in bytes (`--max-memory`).
    pub max_memory: Option<u64>,
    /// The device of the encoder (`--device`).
    pub device: DeviceRequest,
    /// The precision of matrix products (`--dtype`).
    pub compute_dtype: ComputeDtype,
}

impl ModelOptions {
    /// A model without replacements, in f32 on the CPU.
    pub fn of(source: Source) -> Self {
        ModelOptions {
            source,
            config: None,
            random_weights: None,
            task: None,
            tokenizer: None,
            max_length: None,
            truncation_side: None,
            weight_cache: false,
            pair_truncation: PairTruncation::default(),
            pooling: None,
            outputs: Vec::new(),
            only_queries: false,
            max_memory: None,
            device: DeviceRequest::Cpu,
            compute_dtype: ComputeDtype::F32,
        }
    }

    /// Whether config and weights are the model's own.
    pub fn reads_checkpoint(&self) -> bool {
        self.config.is_none() && self.random_weights.is_none()
    }

    /// Whether the encoder is described by a config and has no weights, so that it can only be inspected.
    pub fn is_config_alone(&self) -> bool {
        self.config.is_some() && self.random_weights.is_none()
    }

    /// Whether the model is loaded for this output, alone or beside others.
    pub fn gives(&self, output: OutputKind) -> bool {
        let pooling = match output {
            OutputKind::Dense => None,
            OutputKind::Lexical => Some(Pooling::Lexical),
            OutputKind::MultiVector => Some(Pooling::MultiVector),
        };
        self.outputs.contains(&output) || pooling.is_some() && self.pooling == pooling
    }

    /// The files beside the encoder that the outputs may need.
    pub fn output_files(&self) -> Vec<&'static str> {
        let files = [(OutputKind::Lexical, SPARSE_LINEAR), (OutputKind::MultiVector, COLBERT_LINEAR)];
        files.into_iter().filter(|(output, _)| self.gives(*output)).map(|(_, file)| file).collect()
    }

    /// Whether the model's own files decide how a text becomes a vector.
    pub fn uses_own_pooling(&self) -> bool {
        self.reads_checkpoint() && self.pooling.is_none()
    }
}
