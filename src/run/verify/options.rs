//! The options of `sconce verify`.

use std::path::PathBuf;

use crate::input::{Fields, Source};
use crate::load::ModelOptions;
use crate::sys::console::Console;
use crate::task::VectorOptions;

/// The options of `sconce verify`.
pub struct VerifyOptions {
    /// The model.
    pub model: ModelOptions,
    /// How texts become vectors.
    pub vectors: VectorOptions,
    /// The file of the reference vectors. `None`: those of the model in f32, for its other data types.
    pub against: Option<PathBuf>,
    /// The field of its vectors, if the user chose one.
    pub vector_field: Option<String>,
    /// The files of the texts. None, only without a file of vectors: texts of Sconce's own.
    pub texts: Vec<Source>,
    /// The field of the text.
    pub fields: Fields,
    /// Maximum absolute difference of an element. `None`: the default for the compute dtype.
    pub max_difference: Option<f64>,
    /// Minimum cosine of a vector with its reference. `None`: the default for the compute dtype.
    pub min_cosine: Option<f64>,
    /// Minimum share of common nearest neighbours. `None`: the default for the compute dtype.
    pub min_neighbours: Option<f64>,
    /// Print JSON.
    pub json: bool,
    /// Standard error.
    pub console: Console,
}
