//! The encoder stack (Vaswani et al. 2017, Devlin et al. 2019) over candle tensors.
//!
//! An [`EncoderSpec`] says what the maths is; [`Encoder::load`] asks a [`Parameters`] for every weight by its
//! canonical name; [`Encoder::forward`] takes a [`RaggedBatch`] to hidden states; [`Pooling`] takes those to
//! vectors, and every [`Head`] takes them on. Nothing here knows what a checkpoint calls its tensors or which family it belongs to.

mod attention;
mod convolution;
mod distance;
mod embeddings;
mod encoder;
mod feed_forward;
mod heads;
mod layer;
mod linear;
mod norm;
mod parameters;
mod pooling;
mod ragged;
mod rotary;
mod spec;

pub use crate::kernels::isa::Isa;
pub use crate::kernels::matmul::Compute;
pub use crate::kernels::norm::l2_normalize;
pub use crate::ops::activation::{Activation, NAMES as ACTIVATIONS};
pub use crate::ops::add_norm::NormKind;
pub use crate::ops::attention::QUERIES;
pub use crate::ops::engine::{Engine, Precision, Refusal, Wanted};
pub use crate::ops::gpu::is_out_of_memory;
pub use crate::ops::linear::Matrix;
pub use crate::ops::lookup::{SharedBytes, Stored, Table};
pub use crate::ops::memory::{keep as keep_memory, spare as spare_memory};
pub use encoder::{Encoder, Stage};
pub use heads::{Dense, Head, HeadSpec};
pub(crate) use parameters::placeholder;
pub use parameters::{Count, Parameters, Random, Watch};
pub use pooling::{Pool, Pooling};
pub use ragged::RaggedBatch;
pub use spec::{
    Biases, ConvolutionSpec, Disentangled, EmbeddingNorm, EncoderSpec, Frequencies, HeadMixing, LayerSharing,
    Mask, NormPlacement, NormSpec, Numbering, Positions, Rotary, RotaryLayout, RotaryScaling, ScoreBias,
};
