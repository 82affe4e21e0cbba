//! The user's choice of a model.

/// Which model to use, and whether the network may be used to get it.
#[derive(Debug, Clone)]
pub struct Source {
    /// A directory with a `config.json`, or an id on the hub.
    pub model: String,
    /// Branch, tag or commit on the hub.
    pub revision: String,
    /// Dimensions of the vectors, which choose among the folders of a Dense module (`--dimensions`).
    pub dimensions: Option<usize>,
    /// Whether the network must not be used.
    pub offline: bool,
    /// Whether to draw download progress on standard error.
    pub progress: bool,
}
