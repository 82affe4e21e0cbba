//! Error messages for failed writes.

use std::io::{self, ErrorKind};

use anyhow::anyhow;
use thiserror::Error;

use super::target::{Target, parent_dir};

/// The reader of a pipe closed it. The command ends without an error.
#[derive(Debug, Error)]
#[error("the output pipe was closed")]
pub struct ClosedPipe;

/// The message for a failed write to `target`; [`ClosedPipe`] for a broken pipe. `resumable` says that it is
/// a regular file: whether there are rows to resume, a run says itself.
pub(super) fn write_error(target: &Target, resumable: bool, error: io::Error) -> anyhow::Error {
    match (error.kind(), target) {
        (ErrorKind::BrokenPipe, _) => anyhow::Error::new(ClosedPipe),
        (ErrorKind::StorageFull | ErrorKind::QuotaExceeded, _) => {
            let remedy = if resumable {
                "free some space"
            } else {
                "free some space, or write elsewhere with --output"
            };
            anyhow!("cannot write {target}: the disk is full; {remedy}")
        }
        (ErrorKind::FileTooLarge, _) => {
            anyhow!("cannot write {target}: the limit of file sizes is reached; raise it (ulimit -f)")
        }
        (ErrorKind::IsADirectory, _) => {
            anyhow!("cannot write {target}: it names a directory; name a file in it")
        }
        (ErrorKind::NotFound, Target::File(path)) if !parent_dir(path).is_dir() => {
            let dir = parent_dir(path).display();
            anyhow!("cannot write {target}: directory {dir} does not exist; create it first")
        }
        _ => anyhow!("cannot write {target}: {error}; choose another --output"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::{ClosedPipe, write_error};
    use crate::store::Target;

    #[test]
    fn a_closed_pipe_is_typed() {
        let error = write_error(&Target::Stdout, false, ErrorKind::BrokenPipe.into());
        assert!(error.is::<ClosedPipe>());
    }

    #[test]
    fn a_full_disk_has_a_remedy() {
        let message = |resumable| {
            write_error(&Target::File("out.npy".into()), resumable, ErrorKind::StorageFull.into()).to_string()
        };
        assert!(message(true).ends_with("the disk is full; free some space"), "{}", message(true));
        assert!(message(false).ends_with("elsewhere with --output"), "{}", message(false));
    }

    #[test]
    fn other_errors_are_quoted() {
        let error = write_error(&Target::Stdout, false, Error::other("odd"));
        assert_eq!(error.to_string(), "cannot write standard output: odd; choose another --output");
    }
}
