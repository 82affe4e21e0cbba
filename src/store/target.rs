//! The target of an output: standard output or a path.

use std::fmt;
use std::path::{Path, PathBuf};

/// The target of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A path: of a regular file, or of an existing pipe or device.
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

/// The directory of a path; `.` for a bare file name.
pub fn parent_dir(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parent_dir;

    #[test]
    fn a_bare_name_is_in_the_current_directory() {
        let dirs = ["a.npy", "dir/a.npy", "/a.npy"].map(|path| parent_dir(Path::new(path)));
        assert_eq!(dirs, [".", "dir", "/"].map(Path::new));
    }
}
