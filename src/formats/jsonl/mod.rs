//! JSON Lines.

pub(super) mod write;
