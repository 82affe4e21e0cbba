//! What goes wrong when output is written, as a person is told it.

use std::fmt;
use std::io::{self, ErrorKind};

use anyhow::anyhow;

use super::target::{Target, folder};

/// Whoever read the output has gone, which ends the work without being a fault.
#[derive(Debug)]
pub struct ClosedPipe;

impl fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has gone")
    }
}

impl std::error::Error for ClosedPipe {}

/// One sentence on a failed write; `resumable` where the run can be continued later.
pub fn explain(target: &Target, resumable: bool, error: io::Error) -> anyhow::Error {
    match (error.kind(), target) {
        (ErrorKind::BrokenPipe, _) => anyhow::Error::new(ClosedPipe),
        (ErrorKind::StorageFull | ErrorKind::QuotaExceeded, _) => {
            let remedy = match resumable {
                true => "free some space and run again with --resume",
                false => "free some space or write elsewhere with --output",
            };
            anyhow!("cannot write {target}: the disk is full; {remedy}")
        }
        (ErrorKind::NotFound, Target::File(path)) if !folder(path).is_dir() => {
            anyhow!(
                "cannot write {target}: the folder {} does not exist; create it first",
                folder(path).display()
            )
        }
        _ => anyhow!("cannot write {target}: {error}; choose another --output"),
    }
}
