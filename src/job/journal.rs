//! Saves the manifest of a run, and finds the manifest of an earlier run.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::manifest::{CompletedRun, Manifest, RunIdentity, check_same_run};
use crate::error::UsageError;
use crate::store::{self, SidecarPaths};
use crate::sys::console::{Console, counted};

/// Where a run starts if an earlier one has left rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartMode {
    /// At the first record; refused if rows of an interrupted run would be lost.
    #[default]
    Fresh,
    /// After the rows of an interrupted run, if there is one (`--resume`).
    Resume,
    /// At the first record, dropping the rows of an interrupted run (`--restart`).
    Restart,
}

/// The earlier run whose manifest was found beside an output.
pub enum EarlierRun {
    /// Nothing to resume.
    None,
    /// An interrupted run, which this run resumes.
    Interrupted(Manifest),
    /// A complete run of the same identity.
    Complete(Manifest),
}

/// Refuses to overwrite the rows of an interrupted run without `--resume` or `--restart`.
///
/// # Errors
/// If there are such rows: a usage error.
pub fn refuse_interrupted(sidecars: &SidecarPaths) -> Result<()> {
    let Some(found) = store::manifest::load::<Manifest>(&sidecars.manifest)? else { return Ok(()) };
    // If a run was killed after it renamed its output, no rows would be lost.
    if found.stats.rows == 0 || found.complete && !sidecars.partial.exists() {
        return Ok(());
    }
    bail!(UsageError(format!(
        "{} has {} of an interrupted run; pass --resume to continue it, or --restart to drop them",
        sidecars.output.display(),
        counted(found.stats.rows, "row")
    )))
}

/// Saves the manifest of a run.
pub struct Journal {
    manifest: PathBuf,
    output: PathBuf,
    /// Rows of an interrupted run that this run does not resume.
    dropped_rows: Option<u64>,
    last_save: Instant,
    interval: Duration,
}

/// Minimum time between two saves.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

impl Journal {
    /// The journal of a run, and the earlier run with the same output. `identity` is called if there is one
    /// to compare with.
    ///
    /// # Errors
    /// If this run cannot resume the interrupted run: a usage error.
    pub fn open(
        sidecars: &SidecarPaths,
        start: StartMode,
        console: &Console,
        identity: impl FnOnce() -> Result<RunIdentity>,
    ) -> Result<(Self, EarlierRun)> {
        let journal = |dropped_rows| Journal {
            manifest: sidecars.manifest.clone(),
            output: sidecars.output.clone(),
            dropped_rows,
            last_save: Instant::now(),
            interval: MIN_INTERVAL,
        };
        let found = store::manifest::load::<Manifest>(&sidecars.manifest);
        if start != StartMode::Resume {
            // A manifest that cannot be read is ignored: its rows cannot be resumed.
            let dropped_rows = found.ok().flatten().map(|manifest| manifest.stats.rows);
            return Ok((journal(dropped_rows), EarlierRun::None));
        }
        if let Some(found) = found? {
            check_same_run(&found, &identity()?).map_err(|change| {
                UsageError(format!("--resume: {change}; undo the change, or pass --restart to start over"))
            })?;
            console.note(format!("resuming after {}", counted(found.stats.rows, "row")));
            return Ok((journal(None), EarlierRun::Interrupted(found)));
        }
        let Some(complete) = CompletedRun::find(sidecars) else {
            console.note("nothing to resume; starting from the beginning");
            return Ok((journal(None), EarlierRun::None));
        };
        let earlier = match check_same_run(&complete, &identity()?) {
            Ok(()) => EarlierRun::Complete(complete),
            Err(change) => {
                let output = sidecars.output.display();
                console.note(format!("{output} is complete, but {change}; starting from the beginning"));
                EarlierRun::None
            }
        };
        Ok((journal(None), earlier))
    }

    /// Whether the next save is due. The interval is ten times the duration of the last save, so that saving
    /// takes at most a tenth of the time.
    pub fn is_due(&self) -> bool {
        self.last_save.elapsed() >= self.interval
    }

    /// Saves a manifest. `since` is the start of the checkpoint.
    pub fn save(&mut self, since: Instant, manifest: &Manifest) -> Result<()> {
        store::manifest::save(&self.manifest, &self.output, manifest)?;
        self.last_save = Instant::now();
        self.interval = MIN_INTERVAL.max(10 * since.elapsed());
        Ok(())
    }

    /// Rows of an interrupted run that are still on the disk, because this run has not written anything yet.
    pub fn earlier_rows(&self) -> Option<u64> {
        self.dropped_rows.filter(|rows| *rows > 0)
    }

    /// Rows of an interrupted run that this run drops. Returned once.
    pub fn take_dropped_rows(&mut self) -> Option<u64> {
        self.dropped_rows.take()
    }
}
