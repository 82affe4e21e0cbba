//! The encoder (Vaswani et al. 2017, Devlin et al. 2019) over candle tensors.
//!
//! An [`EncoderSpec`] describes the computation; [`Encoder::load`] asks a [`WeightSource`] for every tensor
//! by its canonical name; [`Encoder::forward`] computes the hidden states of a [`RaggedBatch`], [`Pooling`]
//! reduces them to a vector for each sequence, and [`PostPooling`] modules transform the vectors. [`cost`]
//! has the parameters and multiply-adds of a spec as formulas. Nothing here depends on the names of tensors
//! in a checkpoint or on the model type.

mod attention;
mod bottleneck;
mod causal_lm;
mod classification;
mod component;
mod convolution;
pub mod cost;
mod embeddings;
mod encoder;
mod experts;
mod feed_forward;
mod formula;
mod grown_table;
mod head_transform;
mod layer;
mod linear;
mod masked_lm;
mod norm;
mod pooling;
mod post_pooling;
mod ragged_batch;
mod relative_position;
mod rotary;
mod rows;
mod short_convolution;
mod spec;
mod task_head;
mod token_head;
mod token_pooling;
mod vector_function;
mod weight_source;

pub use crate::kernels::gemm::{F32_SIGNIFICAND_BITS, GemmType};
pub use crate::kernels::isa::Isa;
pub use crate::kernels::norm::l2_normalize;
pub use crate::ops::activation::{Activation, NAMES as ACTIVATIONS};
pub use crate::ops::add_norm::NormKind;
pub use crate::ops::allocator::{
    configure_at_start as configure_allocator, keep_freed_memory as keep_memory,
    report_refusals as report_refused_memory, return_freed_memory,
};
pub use crate::ops::attention::{AttentionWeights, QUERY_BLOCK};
pub use crate::ops::backend::{Backend, ComputeDtype, DeviceError, DeviceRequest, GpuUnavailable};
pub use crate::ops::gpu::{GpuIdentity, OutOfMemory, Verdicts, is_out_of_memory};
pub use crate::ops::linear::Matrix;
pub use crate::ops::lookup::{EmbeddingTable, SafetensorsDtype, SharedBytes};
pub use causal_lm::CausalLmSpec;
pub use classification::{ClassificationHead, ClassificationSpec};
pub use component::Component;
pub use encoder::{Encoder, Stage};
pub use formula::{Formula, Symbol};
pub use head_transform::TransformSpec;
pub use masked_lm::{MaskedLmHead, MaskedLmSpec, SpladeSpec};
pub use pooling::{LEXICAL, MULTI_VECTOR, OutputKind, Pool, Pooling, SPLADE};
pub use post_pooling::{Dense, PostPooling, PostPoolingSpec, VectorStep, apply_to_tokens, is_normalized};
pub use ragged_batch::RaggedBatch;
pub use spec::{
    Biases, BottleneckSpec, ConvolutionSpec, Disentangled, EmbeddingNorm, EncoderSpec, ExpertsSpec,
    Frequencies, GlobalTokens, LayerSharing, MAX_FEED_FORWARDS, Mask, NormPlacement, NormSpec, Numbering,
    PooledToken, PoolerDense, PoolerSpec, Positions, ProjectedEmbeddings, QkNorm, Rotary, RotaryLayout,
    RotaryScaling, ScoreBias, ShortConvolutionSpec, SlidingWindow, TalkingHeads,
};
pub use task_head::{HeadKind, HeadSpec, TaskHead};
pub use token_head::{TokenHead, TokenHeadSpec};
pub use token_pooling::pool_hierarchically;
pub use vector_function::{TorchActivation, VectorFunction};
pub(crate) use weight_source::placeholder;
pub use weight_source::{ChangeCheck, ParameterCount, RandomWeights, WeightSource};
