//! What touches the process and its operating system: panics, threads, memory figures, standard output and
//! error, variables of the environment, the opening and mapping of files of the user. Every other module may
//! use it; it uses none of them. [`BUILD`] tells builds of Sconce apart.

pub mod catch_panic;
pub mod console;
pub mod environment;
pub mod file_size_limit;
#[allow(unsafe_code)]
pub mod mapped_file;
pub mod memory;
pub mod model_json;
pub mod regular_file;
pub mod stdout;
pub mod terminal;
pub mod threads;

/// The release of Sconce and the identity of the build.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (build ", env!("SCONCE_BUILD"), ")");
