//! Embeds the lines of a file in one call and writes the elements of their vectors, little-endian f32.
//!
//!     sconce-library-check MODEL TEXTS VECTORS

use std::error::Error;
use std::fs;

use mimalloc::MiMalloc;
use sconce::Embedder;

/// That of the command line, as the page of the library recommends.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, texts, vectors] = &args[..] else { return Err("usage: MODEL TEXTS VECTORS".into()) };
    let texts = fs::read_to_string(texts)?;
    let texts: Vec<&str> = texts.lines().collect();
    let embeddings = Embedder::open(model.as_str())?.embed(&texts)?;
    let elements = embeddings.iter().flat_map(|embedding| &embedding.vector);
    fs::write(vectors, elements.flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
