//! `sconce merge`: joins the files that several runs wrote, such as the shards of one.

mod arrays;
mod parts;

use std::collections::HashSet;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use self::parts::Part;
use crate::formats::{self, JoinedFile, read_line};
use crate::input::expand_globs;
use crate::job::refuse_interrupted;
use crate::named::Named;
use crate::rows::{FileMetadata, OutputFormat};
use crate::store::{Ledger, OutputLock, ReadFiles, SidecarPaths, Target};
use crate::sys::console::{Console, counted};
use crate::sys::regular_file;

/// The options of `merge`.
pub struct MergeOptions {
    /// The destination of the rows.
    pub output: Target,
    /// The files to join, in order, and globs of them.
    pub inputs: Vec<PathBuf>,
    /// Standard error.
    pub console: Console,
}

/// Joins files of one format, in the order of the arguments, in bounded memory.
pub fn merge(options: &MergeOptions) -> Result<()> {
    let files = expand_globs(&options.inputs)?;
    let lock = OutputLock::acquire(&options.output)?;
    let lock = lock.check("the output", &ReadFiles::new(&files, "an input"))?;
    if let Some(sidecars) = lock.sidecars() {
        Ledger::check_replaceable(&sidecars.final_ledger)?;
        refuse_interrupted(sidecars)?;
    }
    let inputs: Vec<JoinedFile> =
        files.iter().map(|path| JoinedFile { path: path.clone(), kept: None }).collect();
    let parts = open_parts(&inputs)?;
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let checked = parts::check(&parts)?;
    check_name(&options.output, checked.0)?;
    join_parts(&lock, &inputs, (&parts, checked), &paths)?;
    if let Some(warning) = parts::unchecked(&parts) {
        options.console.warn(warning);
    }
    if lock.sidecars().is_some() {
        let files = counted(files.len() as u64, "file");
        options.console.note(format!("merged {files} into {}", lock.target()));
    }
    Ok(())
}

/// Joins files of one format, which has columns, into a locked output, and the ledgers beside `paths`.
pub(super) fn join(lock: &OutputLock, inputs: &[JoinedFile], paths: &[&Path]) -> Result<()> {
    let parts = open_parts(inputs)?;
    let checked = parts::check(&parts)?;
    join_parts(lock, inputs, (&parts, checked), paths)
}

/// Refuses an output whose name has the extension of another format.
fn check_name(output: &Target, format: OutputFormat) -> Result<()> {
    let Target::File(path) = output else { return Ok(()) };
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    match OutputFormat::from_extension(&extension) {
        Some(named) if named != format => bail!(
            "{output} has the name of a {named} file, but the files to merge are {format}, and merging converts none; name it {}",
            path.with_extension(format.name()).display()
        ),
        _ => Ok(()),
    }
}

fn open_parts(inputs: &[JoinedFile]) -> Result<Vec<Part>> {
    inputs.iter().map(|input| Part::open(&input.path)).collect()
}

/// Joins the files `inputs`, which were opened and checked, and the ledgers beside `paths`.
fn join_parts(
    lock: &OutputLock,
    inputs: &[JoinedFile],
    (parts, (format, metadata)): (&[Part], (OutputFormat, FileMetadata)),
    paths: &[&Path],
) -> Result<()> {
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
