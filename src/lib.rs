//! Sconce turns text into vectors with BERT-style encoders.
//!
//! # The path of a text
//!
//! ```text
//! input ──► tokenize ──► plan ──► encode ──► pool ──► post-pooling ──► output
//! Record    TokenIds     batch    hidden     vectors  dense,           rows, in
//! {id,text} ids+types    ragged,  (T, H)     (N, D)   normalize,       input order
//!                        no pads                      convert
//! ```
//!
//! One direction, one pass, bounded memory. A batch is *ragged*: the tokens of all its sequences are concatenated in one `(T, H)`
//! tensor, with `cu_seqlens` beside it. Nothing is computed for padding, and the vector of a text does not depend on its batch.
//!
//! # Modules
//!
//! Imports run downward only: `main → cli → run → {task, job}`, `task → {engine, text, model, nn}`,
//! `job → {engine, input, output}`, `engine → {text, output}`, `{input, output, vectors} → formats` and `model → nn → ops → kernels`. A test checks this, and
//! that no imports form a circle.
//!
//! * [`cli`]: the command line; the only module that uses clap. Resolves arguments to plain option structs.
//! * [`run`]: one file per subcommand: prepare, run, report.
//! * [`task`]: tasks (embedding, classification, reranking, tagging, answering), and loading of models.
//! * [`job`]: records in, rows in files out: order, resume, shards, statistics, signals.
//! * [`engine`]: texts in, rows out, in bounded memory, for any task and any caller: batches, workers, equal texts, row cache.
//! * [`figure`]: pictures and pages of attention.
//! * [`input`]: [`input::Record`] and its readers, one file per format.
//! * [`text`]: the tokenizer, and the chunks of a long text.
//! * [`model`]: reading a model's files: layout, hub, config, families, tensor names, weights, modules.
//! * [`nn`]: the maths over candle tensors.
//! * [`ops`]: candle operations, each with a plain reference, a CPU path and, where it pays, a GPU path.
//! * [`kernels`]: SIMD over slices, without candle; a crate of its own, `sconce-kernels`. `cuda/` has the GPU kernels.
//! * [`neighbours`]: exact nearest neighbours among blocks of stored vectors.
//! * [`vectors`]: readers of vector files, one file per format: vectors in blocks, columns of single rows.
//! * [`formats`]: guarded readers of Parquet and Arrow files, for inputs, outputs and vector files alike.
//! * [`output`]: writers of vectors, scores, labels and spans, one file per format; atomic and resumable files; manifest and ledger.
//!
//! Used by all: [`error`], [`field`] (values of carried-through columns), [`named`] (names of option values), [`sys`] (process,
//! threads, standard error).
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | text, pair | a string to embed; two texts that are encoded together |
//! | record, location | a text with its id and fields; its file and line or row |
//! | kept field | a field of a record that is copied to the output (`--keep`) |
//! | sequence | token ids that are encoded together; a text has one, or several: one per chunk, or with `--on-long mean` one per part of a long text |
//! | chunk | a part of a text with a row of its own, at most `--chunk` tokens |
//! | special tokens | tokens that the tokenizer adds: `[CLS]`, `[SEP]` |
//! | prompt | a string put before each text, such as `query: ` |
//! | batch, `cu_seqlens` | sequences of one forward pass; the offsets of their first tokens |
//! | `key_lengths` | the first tokens of each sequence, which are keys of attention; the others are queries only |
//! | group | records that one tokenizer thread takes at once |
//! | item, wave | a text in the engine with what its caller carries; items that are planned together |
//! | hidden states | `(T, H)`: one row per token after an encoder layer |
//! | selected tokens | the tokens whose last hidden states a task needs; the last layer computes only these |
//! | prefix tree | the tokens of a batch, where sequences with the same prefix share its nodes; with a causal mask, each node is computed once |
//! | pooling | hidden states → one vector per text: `cls`, `mean`, `max` … |
//! | post-pooling modules | the modules after pooling in `modules.json`: dense, layer norm, normalize |
//! | row | an entry of the output: one text, one chunk, or (without pooling) one text with a vector per token |
//! | content | what a row holds beside its columns: a vector, a score, labels, entities, answers, tokens for masks, a sparse vector, or several outputs |
//! | mask | the token `[MASK]` or `<mask>`, in whose place a masked language model expects other tokens |
//! | decoder | the last layer of a masked-LM head: a logit for each token of the vocabulary |
//! | sparse vector | the dimensions of a vector over the vocabulary that are not zero, with their values |
//! | lexical weights | a sparse vector with a weight for each token of the text, from a head with one logit per token |
//! | outputs | what one forward pass of a model like BGE-M3 gives: a vector, lexical weights, vectors of tokens |
//! | route | what a sparse encoder does with a text of one role, if queries need no encoder |
//! | logits, scores | the outputs of a task head; what an activation makes of them |
//! | multi-vector model, MaxSim | a model like ColBERT with one projected vector per token; its score of a query and a document |
//! | role | what a text is to such a model, and by its prompt to others: query or document |
//! | expansion, skiplist | mask tokens after a query; tokens of documents that have no vector |
//! | token pooling | clustering the vectors of a text and keeping the mean of each cluster |
//! | cross-encoder, bi-encoder | a model that scores a pair of texts; one that compares the vectors of two texts |
//! | chat template, message | the Jinja template of a tokenizer; what it renders: a text of a role, such as query or document |
//! | causal-LM head | logits of the next token, of which rerankers use one or two (LogitScore) |
//! | entity, answer | a labelled part of a text; the part of a text that answers a question |
//! | alignment | where the tokens of a sequence are in its text, in characters |
//! | window, stride | a part of a long text that `tag` or `answer` encodes on its own; the tokens that it shares with the next one |
//! | ledger | `FILE.ledger.jsonl`: skipped, failed and truncated records |
//! | manifest, cursor | the saved state of an interrupted run; its position in the input |
//! | journal, sidecars | what saves the manifest; the files beside an output: partial rows, manifest, ledger |
//! | row cache | rows of earlier runs by the digest of their tokens, in a directory (`--cache`) |
//! | identity | the options and files that a resumed run must share with the interrupted one |
//! | shard | one of N contiguous parts of the records of an input (`--shard`), for a run of its own |
//! | family | model types that share config keys, tensor names and defaults |
//! | canonical name | the name of a tensor in this crate, whatever the checkpoint calls it |
//! | component | a part of a model that parameters are counted for: embeddings, attention, feed-forward … |
//! | multiply-adds | of matrix products; two FLOPs each |
//! | head | an attention head; a layer after the encoder is a post-pooling module or a *task head* |
//! | c2p, p2c | content-to-position and position-to-content scores of disentangled attention |
//! | attention weights | the softmax of the scores: for each query the weight of every key |
//! | rollout | the product of the attention of all layers up to one, with residual connections (Abnar & Zuidema 2020) |
//! | QK-norm | norms of the queries and keys of each head, before they are rotated |
//! | decoder language model | a model that predicts the next token; as an encoder, its hidden states |
//! | talking heads | projections across heads before and after the softmax |
//! | ISA | the instruction set of the kernels: `avx512-bf16`, `avx2`, `portable` … (`SCONCE_ISA`) |
//! | backend | device and GEMM type of an encoder |
//! | M, N, K | rows, outputs and inputs of a linear layer: `(M, K) · (K, N)` |
//! | MR, NR, MC, KC | rows and columns of a micro-tile; rows and depth of a block |
//! | panel | MR rows or NR columns of an operand, packed for the micro-kernel |
//! | epilogue | the operations on a micro-tile in registers: scale, bias, activation |
//! | accumulator | the f32 (int8: i32) sums of a micro-tile |
//! | tile | a matrix register of AMX |
//! | peak | the highest rate of the arithmetic units |

pub mod cli;
pub mod engine;
pub mod error;
pub mod field;
pub mod figure;
pub mod formats;
pub mod input;
pub mod job;
pub mod model;
pub mod named;
pub mod neighbours;
pub mod nn;
#[allow(unsafe_code)]
pub mod ops;
pub mod output;
pub mod run;
pub mod sys;
pub mod task;
pub mod text;
pub mod vectors;

pub use sconce_kernels as kernels;
