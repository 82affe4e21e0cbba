//! Wording that the errors of several readers share.

use std::io;
use std::path::Path;

use anyhow::anyhow;

pub(super) use crate::error::one_line;

/// Maximum number of field or column names that an error lists.
pub(super) const MAX_LISTED_NAMES: usize = 20;

/// The first names of a list on one line, and `more`, the number of the remaining names.
pub(super) fn list_names<S: AsRef<str>>(first: &[S], more: usize) -> String {
    let names = first.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    let names = one_line(&names);
    if more == 0 { names } else { format!("{names} and {more} more") }
}

/// The error for an input path that cannot be opened.
pub(super) fn cannot_open(path: impl AsRef<Path>, error: &io::Error) -> anyhow::Error {
    anyhow!("cannot read --input {} ({error}); check the path", path.as_ref().display())
}

/// The error for a column whose name others have, too; `place` has the names of all
/// columns, and `option` is the command-line option that names this one.
pub(super) fn several_columns(
    input: &str,
    place: &str,
    count: usize,
    name: &str,
    option: &str,
) -> anyhow::Error {
    anyhow!(
        "{input}: the {place} has {count} columns {name:?}; rename one of them, or choose another with {option}"
    )
}

/// The error for a column that an input does not have; `option` is the command-line option that names the
/// column.
pub(super) fn missing_column<'a>(
    input: &str,
    name: &str,
    mut columns: impl Iterator<Item = &'a str>,
    option: &str,
) -> anyhow::Error {
    let first: Vec<_> = columns.by_ref().take(MAX_LISTED_NAMES).collect();
    if first.is_empty() {
        return anyhow!("{input}: no column {name:?}, nor any other; add a header row with the column names");
    }
    let columns = list_names(&first, columns.count());
    anyhow!("{input}: no column {name:?} (columns: {columns}); choose one with {option}")
}

#[cfg(test)]
mod tests {
    use super::{list_names, missing_column};

    #[test]
    fn long_lists_of_names_are_cut() {
        assert_eq!(list_names(&["a", "b\nc"], 0), "a, b c");
        assert_eq!(list_names(&["a"], 7), "a and 7 more");
        let columns: Vec<_> = (0..30).map(|i| i.to_string()).collect();
        let error = missing_column("a.csv", "x", columns.iter().map(String::as_str), "--keep").to_string();
        assert!(error.ends_with(", 18, 19 and 10 more); choose one with --keep"), "{error}");
    }
}
