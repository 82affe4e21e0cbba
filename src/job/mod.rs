//! Records in, rows in a file or a stream out: what only a run over files needs, for every task alike.
//!
//! ```text
//! source ──groups──► tokenizers ──groups, in order──► engine ──waves, in order──► collector
//! ```
//!
//! Each stage runs in threads of its own. Bounded queues connect them, so that the stages overlap and memory
//! does not grow with the input. A *group* is the records that one tokenizer thread takes at once.
//!
//! A run is built in `stages`: a plan, which looks for an earlier run; a run with records that have no rows
//! yet; a run with its engine and its output; its report.
//!
//! * `source`: the records, the first of which can be inspected before the run starts; `shard`: a part of
//!   them; `known_records`: those that the output has rows of already.
//! * `queries`: what records are read for. `reader`, `tokenizer`: one stage each; `messages`: the types that
//!   they send to one another.
//! * `collector`: writes rows and ledger in input order, and saves checkpoints.
//! * `in_memory`: rows for a caller, in place of a file.
//! * `columns`: the types of the columns that come from the input.
//! * `cursor`, `manifest`, `journal`, `identity`, `digests`: resuming an interrupted run.
//! * `dry_run`: what a run would take.
//! * `stats`, `summary`: counts and timings. `signals`: Ctrl-C.

mod collector;
mod columns;
mod cursor;
mod digests;
mod dry_run;
mod identity;
mod in_memory;
mod journal;
mod known_records;
mod manifest;
mod messages;
mod queries;
mod reader;
mod shard;
mod signals;
mod source;
mod stages;
mod stats;
mod summary;
mod tokenizer;

pub use collector::{Policy, QueryColumns, RunOutput};
pub use digests::{FileDigests, sha256_of_texts, weights_digest};
pub use dry_run::Estimate;
pub use identity::{DEVICE, Identity};
pub use in_memory::{EncodedRecord, encode_records};
pub use journal::{EarlierRun, Journal, StartMode, refuse_interrupted};
pub use known_records::{ChangeCounts, Changes, FileRecords};
pub use manifest::{Manifest, RunIdentity, shard_of_run};
pub use queries::Queries;
pub use shard::Shard;
pub use signals::{EXIT_INTERRUPTED, Interrupted};
pub use source::{OnNull, OpenInput, Pace, RecordSource, Selection};
pub use stages::{EnginePlan, FinishedJob, Job, JobPlan, OpenedJob, UnfinishedJob, UpToDateJob};
pub use stats::{ExitStatus, Stats};
pub use summary::{Timings, check_writable};
