//! Tasks, one module each: what becomes of the sequences of a loaded model.
//!
//! * `options`: plain option structs.
//! * `model_task`: what a task is beyond the pipeline's contract. `batch_size`: its batch size and memory per
//!   token.
//! * `reading`: what texts are, with the prompt and the limit that follow from it. `tokens`: the prompt
//!   before a text, and the check of its tokens. `sequences`: from texts to hidden states. `chunks`: where
//!   those of a text are.
//! * `attention`: the attention weights of one text.
//! * `embedding`: one vector per text, per chunk or per token.
//! * `classification`: labels, or the scores of a cross-encoder. `reranking`: scores of texts for a query.
//!   `pair_template`: a query and a text in the words of a chat template.
//! * `masked_lm`: tokens for masks. `sparse`: weights of the vocabulary (SPLADE), or of the tokens of a text,
//!   which `lexical` gives. `text_encoder`: vectors or weights. `outputs`: vectors, weights and vectors of
//!   tokens together.
//! * `precision`: the vectors of a data type beside those in f32.
//! * `tagging`: entities of a text, which `entities` makes of the logits of tokens. `answering`: answers to a
//!   question, which `answers` chooses.

mod answering;
mod answers;
mod attention;
mod batch_size;
mod chunks;
mod classification;
mod embedding;
mod entities;
mod lexical;
mod masked_lm;
mod model_task;
mod options;
mod outputs;
mod pair_template;
pub mod precision;
mod reading;
mod reranking;
mod sequences;
mod sparse;
mod tagging;
mod text_encoder;
mod text_model;
mod tokens;

pub use crate::engine::TextError;
pub use crate::text::OnLong;
pub use answering::{AnswerOptions, Answerer};
pub use attention::{AttentionMaps, AttentionOptions, Layers, Mixing, View, Views, attend};
pub use batch_size::{
    AMX_TOKENS, CAUSAL_TOKENS, CPU_F32_TOKENS, CPU_TOKENS, MAX_GPU_TOKENS, MemoryUse, engine, memory_use,
    workload,
};
pub use classification::{Classifier, ScoreOptions};
pub use embedding::{EmbeddedTexts, Embedder, LateInteraction};
pub use entities::Aggregation;
pub use masked_lm::MaskFiller;
pub use model_task::{HeadMemory, ModelTask};
pub use options::{PromptChoice, QueryOptions, VectorOptions};
pub use outputs::OutputsEncoder;
pub use reading::Readings;
pub use reranking::{BiEncoder, Reranker};
pub use sparse::SparseEncoder;
pub use tagging::{TagOptions, Tagger};
pub use text_encoder::TextEncoder;
pub use text_model::TextModel;
