//! Records in, rows out, in bounded memory, for every task alike.
//!
//! ```text
//! source ──groups──► tokenizers ──groups, in order──► planner ──waves, in order──► collector
//!                                                        └──batches──► workers ──rows──┘
//! ```
//!
//! Each stage runs in threads of its own. Bounded queues connect them, so that the stages overlap and memory does not grow with
//! the input. A *group* is the records that one tokenizer thread takes at once. A *wave* is the records that are planned
//! together: some batches for each worker. The batches of a wave finish in any order; the collector waits for all of them, and takes
//! the waves in the order of input.
//!
//! A task implements the trait [`Task`]: the tokens of a record, and the rows of a batch.
//!
//! * `source`: the records, the first of which can be inspected before the run starts; `shard`: a part of them;
//!   `known_records`: those that the output has rows of already.
//! * `row_cache`, `row_store`: rows of earlier runs, in the place of a batch's (`--cache`).
//! * `reader`, `tokenizer`, `planner`, `workers`: one stage each; `messages`: the types that they send to one another.
//! * `budget`: how many records, tokens and bytes are in flight, as pure functions.
//! * `collector`: writes rows and ledger in input order, and saves checkpoints.
//! * `columns`: the types of the columns that come from the input.
//! * `cursor`, `manifest`, `journal`, `digests`: resuming an interrupted run.
//! * `stats`, `utilization`, `summary`: counts and timings. `signals`: Ctrl-C.

mod budget;
mod collector;
mod columns;
mod cursor;
mod digests;
mod journal;
mod known_records;
mod manifest;
mod messages;
mod planner;
mod reader;
mod row_cache;
mod row_store;
mod shard;
mod signals;
mod source;
mod stats;
mod summary;
mod task;
mod tokenizer;
mod utilization;
mod workers;

pub use budget::{MemoryBudget, Workload};
pub use collector::{Collector, Policy, QueryColumns};
pub use digests::{FileDigests, sha256_of_texts, weights_digest, weights_metadata};
pub use journal::{EarlierRun, Journal, StartMode, refuse_interrupted};
pub use known_records::{FileRecords, KnownRecords};
pub use manifest::{Manifest, RunIdentity, SHARD_KEYS, shard_of_run};
pub use messages::CollectorMessage;
pub use reader::start_stages;
pub use row_cache::RowCache;
pub use shard::Shard;
pub use signals::{EXIT_INTERRUPTED, Interrupted, exit_on_signal, listen};
pub use source::{Pace, RecordSource, Selection};
pub use stats::{ExitStatus, Stats};
pub use summary::{Timings, check_writable, write_summary};
pub use task::{NO_TOKENS, Task, TaskRow, TokenizeError};
pub use utilization::Utilization;
