//! A tiny search engine over the lines of a file. The first search embeds them into a file beside it, which
//! later ones read.
//!
//!     cargo run --release --example search -- texts.txt "how do lamps work" [MODEL]

use std::error::Error;
use std::path::{Path, PathBuf};

use sconce::{Embedder, VectorFile};

// The example that writes the vectors.
#[path = "embed_file.rs"]
#[allow(dead_code)]
pub(crate) mod embed_file;

/// The number of hits.
const HITS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (texts, query, model) = match &args[..] {
        [texts, query] => (texts, query, "sentence-transformers/all-MiniLM-L6-v2"),
        [texts, query, model] => (texts, query, model.as_str()),
        _ => return Err("usage: search TEXTS QUERY [MODEL]".into()),
    };
    for (score, text) in search(&Embedder::open(model)?, texts.as_ref(), query)? {
        println!("{score:.3} {text}");
    }
    Ok(())
}

/// The lines that are nearest to a query, best first, with their scores.
pub(crate) fn search(
    embedder: &Embedder,
    texts: &Path,
    query: &str,
) -> Result<Vec<(f32, String)>, Box<dyn Error>> {
    let mut vectors = PathBuf::from(texts);
    vectors.set_extension("vectors.jsonl");
    if !vectors.exists() {
        embed_file::embed_file(embedder, texts, &vectors)?;
    }
    let file = VectorFile::open(&vectors)?;
    // With the prompt and the length that the model has for queries.
    let query = embedder.embed_queries(&[query])?.remove(0);
    let hits = file.search(&query.vector, HITS)?;
    let rows: Vec<usize> = hits.iter().map(|hit| hit.index).collect();
    let texts = file.values("text", &rows)?.into_iter().map(Option::unwrap_or_default);
    Ok(hits.iter().map(|hit| hit.score).zip(texts).collect())
}
