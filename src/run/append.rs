//! `embed --append`: rows of new and changed records are written to a file of their own, which is joined with
//! the rows of the output that stay at the end.

use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};

use super::merge;
use super::records::{Append, Input, RecordOptions};
use crate::error::UsageError;
use crate::formats::JoinedFile;
use crate::job::{ChangeCounts, FileRecords, StartMode, refuse_interrupted};
use crate::store::{OutputLock, ReadFiles, SidecarPaths, Target, own_file, remove};
use crate::sys::console::{counted, thousands};
use crate::sys::regular_file::has_dir_entry;

/// The file that rows are appended to, which is locked until they are.
pub(super) struct Appended {
    lock: OutputLock,
    file: PathBuf,
    /// The file of the new rows until they are appended: [`SidecarPaths::added`].
    added: PathBuf,
    /// The records of the file.
    records: Arc<FileRecords>,
}

/// Makes a dry run of `--append` count the records that are new or changed only. Nothing is locked, as
/// nothing is written.
pub(super) fn estimate(options: &mut RecordOptions) -> Result<()> {
    let output = mem::replace(&mut options.output, Target::Stdout);
    let (Some(append), Target::File(file)) = (&options.append, output) else { return Ok(()) };
    check_format(options)?;
    if file.exists() {
        let records = FileRecords::read(&file, options.hashed_rows(), append.records.changes)?;
        compare_with(options, &file, &Arc::new(records))?;
    }
    Ok(())
}

/// Makes a run take records that the file has for unchanged, with fields in the order of its columns: those
/// of an input may have any order.
fn compare_with(options: &mut RecordOptions, file: &Path, records: &Arc<FileRecords>) -> Result<()> {
    if let Input::Files(_, fields) = &mut options.input {
        let names = records.names(file)?;
        let place = |name: &str| names.iter().position(|column| column == name).unwrap_or(usize::MAX);
        fields.keep.sort_by_key(|kept| place(&kept.output));
    }
    options.append = Some(Append { file: Some(file.to_owned()), records: records.clone() });
    Ok(())
}

/// Refuses formats whose rows have no place for the hash of a record.
fn check_format(options: &RecordOptions) -> Result<()> {
    if options.format.has_columns() {
        return Ok(());
    }
    bail!(UsageError(format!(
        "--append needs a column for the hash of each record, which {} does not have; write jsonl, csv, parquet or arrow",
        options.format
    )))
}

impl Appended {
    /// Locks the output and reads the hashes of its records, if there is an output that rows can be appended
    /// to.
    pub(super) fn open(options: &RecordOptions, append: &Append) -> Result<Option<Self>> {
        check_format(options)?;
        // The run that writes the new rows compares this output with the files that it reads.
        let lock = OutputLock::acquire(&options.output)?.check("--output", &ReadFiles::default())?;
        let Some(sidecars) = lock.sidecars() else {
            bail!(UsageError(format!("--append: {} is not a file; pass --output FILE", options.output)));
        };
        let file = sidecars.output.clone();
        if !file.exists() {
            return Ok(None);
        }
        if options.selection.shard.is_some() {
            if options.start == StartMode::Resume {
                return Ok(None);
            }
            bail!(UsageError(format!(
                "--shard: {} exists, and --append adds no rows to the file of a shard; append to the merged file, or remove it",
                file.display()
            )));
        }
        refuse_interrupted(sidecars)?;
        let added = sidecars.added.clone();
        check_is_added(&added)?;
        let records = FileRecords::read(&file, options.hashed_rows(), append.records.changes)?;
        Ok(Some(Appended { lock, file, added, records: Arc::new(records) }))
    }

    /// Makes a run write rows of new and changed records only, into their own file.
    ///
    /// # Errors
    /// If the output cannot be read.
    pub(super) fn redirect(&self, options: &mut RecordOptions) -> Result<()> {
        options.output = Target::File(self.added.clone());
        compare_with(options, &self.file, &self.records)
    }

    /// Joins the rows of the output that stay and the new rows, and removes the file of the new rows. If the
    /// process is killed before, the next run with `--resume` does it.
    pub(super) fn finish(self, options: &RecordOptions) -> Result<()> {
        let (kept, counts) = self.records.change(&self.file, &self.added, options.hashed_rows())?;
        let ChangeCounts { added, updated, deleted } = counts;
        if added + updated == 0 && deleted > 0 && !kept.contains(&true) && !self.records.are_in_input() {
            self.remove_added()?;
            bail!(
                "--delete would leave {} without rows, as the input has none of its ids and no other record; pass all records, or \
                 remove the file",
                self.file.display()
            );
        }
        if counts != ChangeCounts::default() {
            let added = JoinedFile { path: self.added.clone(), kept: None };
            let kept = (updated + deleted > 0).then_some(kept);
            // A file without rows may have other columns, and those of another model.
            let file = (!self.records.is_empty()).then(|| JoinedFile { path: self.file.clone(), kept });
            let files: Vec<JoinedFile> = file.into_iter().chain([added]).collect();
            merge::join(&self.lock, &files, &[&self.file, &self.added]).map_err(|error| {
                anyhow!("{error:#}; the new rows are saved: rerun with --resume to join them")
            })?;
        } else if let Some(sidecars) = self.lock.sidecars() {
            // New records without rows have entries, too.
            merge::join_ledgers(sidecars, &[&self.file, &self.added])?;
        }
        let target = self.lock.target();
        options.console.note(if self.records.changes.any() {
            let (added, updated) = (counted(added, "record"), thousands(updated));
            format!("{target}: {added} added, {updated} updated, {} deleted", thousands(deleted))
        } else {
            format!("appended {} to {target}", counted(added, "record"))
        });
        self.remove_added()
    }

    /// Removes the file of the new rows.
    fn remove_added(&self) -> Result<()> {
        remove(&self.added)?;
        SidecarPaths::of(&Target::File(self.added.clone()))?.map_or(Ok(()), |sidecars| sidecars.remove())
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
