//! Where output goes.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Stdout => write!(f, "standard output"),
            Target::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The folder of a file.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
