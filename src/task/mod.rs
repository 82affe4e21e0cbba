//! Tasks, one module each. They share loading, devices and batch sizes.
//!
//! * `options`: plain option structs. `device`: the backends for `--device` and `--dtype`.
//! * `load`: from the files of a model to its encoder and tokenizer. `examine`: the same for inspection, with all faults.
//! * `tokens`: the prompt before a text, and the check of its tokens.
//! * `attention`: the attention weights of one text.
//! * `embedding`: one vector per text, per chunk or per token. `batch_size`: its batch size and memory per token.
//! * `similarity`: similarities of two vectors.

mod attention;
mod batch_size;
mod device;
mod embedding;
mod examine;
mod load;
mod options;
mod similarity;
mod tokens;

pub use attention::{AttentionMaps, AttentionOptions, Layers, Mixing, View, Views, attend};
pub use batch_size::{CPU_F32_TOKENS, CPU_TOKENS, MAX_GPU_TOKENS, MemoryUse, memory_use, workload};
pub use embedding::{EmbeddedTexts, Embedder, TextError};
pub use examine::{Examined, examine};
pub use load::{Loaded, MaxLength, load};
pub use options::{ModelOptions, OnLong, PromptChoice, VectorOptions};
pub use similarity::similarity;
