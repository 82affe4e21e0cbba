//! JSON Lines.

mod object;
mod read;
pub(super) mod write;

pub use object::{
    find_fields, has_rounded_integer, json_type, lone_surrogate, not_finite, parseable, replace_not_finite,
    without_white_space,
};
pub use read::{JsonlFile, JsonlStart, VectorLine};
