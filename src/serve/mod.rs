//! The HTTP server.

pub mod schema;
