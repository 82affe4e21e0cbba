//! `embed --append`: rows of new records are written to a file of their own, which is joined with the output
//! at the end.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::merge;
use super::records::{Append, RecordOptions};
use crate::error::UsageError;
use crate::formats::for_each_record_hash;
use crate::job::refuse_interrupted;
use crate::store::{OutputLock, ReadFiles, SidecarPaths, Target, own_file, remove};
use crate::sys::console::counted;
use crate::sys::regular_file::has_dir_entry;

/// The file that rows are appended to, which is locked until they are.
pub(super) struct Appended {
    lock: OutputLock,
    file: PathBuf,
    /// The file of the new rows until they are appended: [`SidecarPaths::added`].
    added: PathBuf,
}

impl Appended {
    /// Locks the output, if there is one that rows can be appended to.
    pub(super) fn open(options: &RecordOptions) -> Result<Option<Self>> {
        if !options.format.has_columns() {
            bail!(UsageError(format!(
                "--append needs a column for the hash of each record, which {} does not have; write jsonl, csv, parquet or arrow",
                options.format
            )));
        }
        // The run that writes the new rows compares this output with the files that it reads.
        let lock = OutputLock::acquire(&options.output)?.check("--output", &ReadFiles::default())?;
        let Some(sidecars) = lock.sidecars() else {
            bail!(UsageError(format!("--append: {} is not a file; pass --output FILE", options.output)));
        };
        let file = sidecars.output.clone();
        if !file.exists() {
            return Ok(None);
        }
        refuse_interrupted(sidecars)?;
        let added = sidecars.added.clone();
        check_is_added(&added)?;
        Ok(Some(Appended { lock, file, added }))
    }

    /// Makes a run write rows of new records only, into their own file.
    pub(super) fn redirect(&self, options: &mut RecordOptions) {
        options.output = Target::File(self.added.clone());
        options.append = Some(Append { file: Some(self.file.clone()) });
    }

    /// Joins the output and the new rows, and removes the file of the new rows. If the process is killed
    /// before, the next run with `--resume` does it.
    pub(super) fn finish(self, options: &RecordOptions) -> Result<()> {
        let mut records = 0;
        for_each_record_hash(&self.added, options.format, options.chunks, |_, _| {
            records += 1;
            Ok(())
        })?;
        let files = [self.file.clone(), self.added.clone()];
        if records > 0 {
            merge::join(&self.lock, &files)?;
        } else if let Some(sidecars) = self.lock.sidecars() {
            // New records without rows have entries, too.
            merge::join_ledgers(sidecars, &files)?;
        }
        options.console.note(format!("appended {} to {}", counted(records, "record"), self.lock.target()));
        remove(&self.added)?;
        SidecarPaths::of(&Target::File(self.added))?.map_or(Ok(()), |sidecars| sidecars.remove())
    }
}

/// Checks that a file of new rows, if there is one, is that of an earlier run that was killed before it
/// appended them.
fn check_is_added(added: &Path) -> Result<()> {
    let refuse = |reason: String| {
        anyhow!(
            "--append writes new rows to {}, which exists already, but {reason}; move it, or choose another --output",
            added.display()
        )
    };
    if !has_dir_entry(added) {
        return Ok(());
    }
    own_file::check(added).map_err(|error| refuse(error.to_string()))?;
    let sidecars = SidecarPaths::of(&Target::File(added.to_owned()))?;
    let has_manifest = |sidecars: &SidecarPaths| {
        [&sidecars.manifest, &sidecars.done].into_iter().any(|manifest| own_file::check(manifest).is_ok())
    };
    if sidecars.as_ref().is_some_and(has_manifest) {
        return Ok(());
    }
    Err(refuse("is not that of an interrupted run".into()))
}
