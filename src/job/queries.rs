//! The queries that records are read with.

/// What the records of a job are read for. By default there are no queries, and the second text of a record
/// is that of a pair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queries {
    /// Each record is read with every one of these.
    pub texts: Vec<String>,
    /// Whether the second text of a record is its query, in place of these.
    pub of_records: bool,
}

impl Queries {
    /// How many times a record is read.
    pub(super) fn count(&self) -> usize {
        self.texts.len().max(1)
    }
}
