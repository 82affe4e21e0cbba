//! What touches the process and its operating system: panics, threads, memory figures, standard output and error, and
//! the opening and mapping of regular files, the cache of their digests, and the variables of the environment. Every other module may use it; it uses none of them.

pub mod catch_panic;
pub mod console;
pub mod digest_cache;
pub mod environment;
#[allow(unsafe_code)]
pub mod mapped_file;
pub mod memory;
pub mod regular_file;
pub mod stdout;
pub mod terminal;
pub mod threads;
