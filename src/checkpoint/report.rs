//! The report on the tensors of a checkpoint.

use thiserror::Error;

/// How the tensors of a checkpoint are used; names are those of the checkpoint.
#[derive(Debug, Default)]
pub struct TensorReport {
    /// Tensors that were loaded, with shape and dtype.
    pub used: Vec<(String, Vec<usize>, String)>,
    /// Tensors that the encoder does not use: task heads, poolers, buffers.
    pub unused: Vec<String>,
    /// Unused tensors that belong to the encoder by their names: the config does not mention the module that
    /// needs them.
    pub unexpected_tensors: Vec<String>,
    /// Loaded tensors with NaN or infinite values, and how many of those.
    pub not_finite: Vec<(String, usize)>,
    /// Modules whose weights an adapter has changed.
    pub merged: Vec<String>,
    /// Faults that make the checkpoint unusable.
    pub problems: Vec<Problem>,
}

/// A tensor that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// Not in the checkpoint.
    #[error("tensor {name} of shape {expected:?} is missing")]
    Missing {
        /// The checkpoint's name.
        name: String,
        /// The shape that the config describes.
        expected: Vec<usize>,
    },
    /// Of another shape than the config describes.
    #[error("tensor {name} has shape {found:?}, but the config describes {expected:?}")]
    Misshapen {
        /// The checkpoint's name.
        name: String,
        /// The shape in the checkpoint.
        found: Vec<usize>,
        /// The shape that the config describes.
        expected: Vec<usize>,
    },
    /// Not of a floating-point dtype.
    #[error("tensor {name} is of type {found}, expected F32, F16, BF16 or F64")]
    Mistyped {
        /// The checkpoint's name.
        name: String,
        /// The dtype in the checkpoint.
        found: String,
    },
}

impl Problem {
    /// The checkpoint's name of the tensor.
    pub(super) fn name(&self) -> &str {
        match self {
            Problem::Missing { name, .. }
            | Problem::Misshapen { name, .. }
            | Problem::Mistyped { name, .. } => name,
        }
    }
}

impl TensorReport {
    /// Adds the report on another file, named by the `origin` of its tensors unless it is the same.
    pub fn add(&mut self, other: TensorReport, origin: Option<&str>) {
        let qualified = |name: String| match origin {
            Some(origin) => format!("{origin}: {name}"),
            None => name,
        };
        self.used.extend(other.used.into_iter().map(|(name, shape, dtype)| (qualified(name), shape, dtype)));
        self.unused.extend(other.unused.into_iter().map(qualified));
        self.not_finite.extend(other.not_finite.into_iter().map(|(name, count)| (qualified(name), count)));
    }
}
