//! Durable files, whatever is in them: an output that appears complete or not at all, what is beside it, and
//! what the caches hold.
//!
//! ```text
//! bytes ──► Destination ──► .out.partial ──► out
//!           BufWriter,      truncated and    renamed
//!           digests         continued by
//!                           --resume
//! ```
//!
//! An output is written atomically: its bytes go to a partial file beside it, and [`Destination::commit`]
//! renames the complete file to its final name. A [`manifest`] saves which of them are on the disk
//! ([`DurableRows`]), so that an interrupted run can be resumed. A [`Ledger`] lists the skipped, failed and
//! truncated records. [`SidecarPaths`] names all of these files, and an [`OutputLock`] keeps two processes
//! from writing the same ones. Standard output, pipes and devices are written to directly and cannot be
//! resumed.
//!
//! Every file takes its name by a rename of `replace.rs`, every digest is a [`Digest`], and files that Sconce
//! has made are opened by [`own_file`] only.

mod destination;
mod digest;
pub mod digest_cache;
mod durable_rows;
mod ledger;
mod lock;
pub mod manifest;
pub mod own_file;
mod read_files;
mod replace;
mod sidecars;
mod target;
mod write;
mod write_error;

pub use destination::{Access, Destination, ReadSeek};
pub use digest::{Digest, Hasher};
pub use durable_rows::{DurableRows, HashedBlock};
pub use ledger::{Event, Ledger, LedgerEntry};
pub use lock::{OutputLock, UncheckedOutput};
pub use read_files::{ReadFiles, refuse};
pub use replace::{Durability, put, remove, rename, replace_cached, temporary_file};
pub use sidecars::{LEDGER_SUFFIX, META_SUFFIX, SidecarPaths, regular_file};
pub use target::{Target, parent_dir};
pub use write::{print, print_with, write, write_file};
pub use write_error::ClosedPipe;
