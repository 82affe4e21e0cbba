//! `sconce merge`: joins the files that several runs wrote, such as the shards of one.

mod arrays;
mod parts;

use std::collections::HashSet;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use self::parts::Part;
use crate::formats::{self, JoinedFile, read_line};
use crate::job::refuse_interrupted;
use crate::rows::OutputFormat;
use crate::store::{Ledger, OutputLock, ReadFiles, SidecarPaths, Target};
use crate::sys::console::{Console, counted};
use crate::sys::regular_file;

/// The options of `merge`.
pub struct MergeOptions {
    /// The destination of the rows.
    pub output: Target,
    /// The files to join, in order.
    pub inputs: Vec<PathBuf>,
    /// Standard error.
    pub console: Console,
}

/// Joins files of one format, in the order of the arguments, in bounded memory.
pub fn merge(options: &MergeOptions) -> Result<()> {
    let lock = OutputLock::acquire(&options.output)?;
    let lock = lock.check("the output", &ReadFiles::new(&options.inputs, "an input"))?;
    if let Some(sidecars) = lock.sidecars() {
        Ledger::check_replaceable(&sidecars.final_ledger)?;
        refuse_interrupted(sidecars)?;
    }
    let inputs: Vec<JoinedFile> =
        options.inputs.iter().map(|path| JoinedFile { path: path.clone(), kept: None }).collect();
    let parts = open_parts(&inputs)?;
    let paths: Vec<&Path> = options.inputs.iter().map(PathBuf::as_path).collect();
    join_parts(&lock, &inputs, &parts, &paths)?;
    if let Some(warning) = parts::unchecked(&parts) {
        options.console.warn(warning);
    }
    if lock.sidecars().is_some() {
        let files = counted(options.inputs.len() as u64, "file");
        options.console.note(format!("merged {files} into {}", lock.target()));
    }
    Ok(())
}

/// Joins files of one format, which has columns, into a locked output, and the ledgers beside `paths`.
pub(super) fn join(lock: &OutputLock, inputs: &[JoinedFile], paths: &[&Path]) -> Result<()> {
    join_parts(lock, inputs, &open_parts(inputs)?, paths)
}

fn open_parts(inputs: &[JoinedFile]) -> Result<Vec<Part>> {
    inputs.iter().map(|input| Part::open(&input.path)).collect()
}

/// Joins the files `inputs`, which were opened as `parts`, and the ledgers beside `paths`.
fn join_parts(lock: &OutputLock, inputs: &[JoinedFile], parts: &[Part], paths: &[&Path]) -> Result<()> {
    let (format, metadata) = parts::check(parts)?;
    let merged = match format {
        OutputFormat::Jsonl | OutputFormat::Csv => formats::concatenate(lock, format, inputs),
        OutputFormat::Parquet | OutputFormat::Arrow => formats::join_tables(lock, format, inputs, &metadata),
        OutputFormat::Npy | OutputFormat::Npz | OutputFormat::Safetensors => {
            arrays::join(lock, format, paths, &metadata)
        }
    };
    if let Err(error) = merged {
        // A merge is not resumed. What cannot be removed now, the next run replaces.
        let _ = lock.discard();
        return Err(error);
    }
    if let Some(sidecars) = lock.sidecars() {
        join_ledgers(sidecars, paths)?;
        parts::join_npy_metadata(sidecars, parts, &metadata)?;
    }
    Ok(())
}

/// Joins the ledgers beside the inputs, without repeating entries: a record that cannot be read is in the
/// ledger of each run that appends rows. Without any ledger, an earlier ledger of the output is removed.
pub(super) fn join_ledgers(sidecars: &SidecarPaths, inputs: &[&Path]) -> Result<()> {
    let mut ledger = Ledger::open(&sidecars.ledger, &sidecars.output, None)?;
    let mut seen = HashSet::new();
    for input in inputs {
        let Some(paths) = SidecarPaths::of(&Target::File((*input).to_owned()))? else { continue };
        if regular_file::has_dir_entry(&paths.final_ledger) {
            let unread = |error| anyhow!("cannot read the ledger {} ({error})", paths.final_ledger.display());
            let mut file = BufReader::new(regular_file::open(&paths.final_ledger).map_err(unread)?);
            ledger.append(&paths.final_ledger, |line| read_line(&mut file, line), &mut seen)?;
        }
    }
    ledger.finish(&sidecars.final_ledger)
}
