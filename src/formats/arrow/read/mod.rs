//! Arrow IPC files and streams: the columns that are needed, one record batch at a time.

mod batches;
mod decode;
mod file;
mod message;
mod projection;
mod reader;
mod stream;

pub use batches::{ArrowBatches, open};
pub use reader::ArrowReader;
