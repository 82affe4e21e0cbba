//! What a reader of Sconce's outputs uses of the crate `arrow`, by its names, from the crates that Sconce has
//! anyway.

pub use {arrow_buffer as buffer, arrow_ipc as ipc};

pub mod array {
    pub use arrow_array::cast::AsArray;
    pub use arrow_array::*;
}

pub mod datatypes {
    pub use arrow_array::types::*;
    pub use arrow_schema::*;
}

pub mod compute {
    pub use arrow_cast::cast;
    pub use arrow_select::concat::concat_batches;
}
