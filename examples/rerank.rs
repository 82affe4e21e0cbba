//! Ranks the lines of a file by a query with a cross-encoder, which reads both together: slower than
//! comparing vectors, and better. Give it what a search has found.
//!
//!     cargo run --release --example rerank -- hits.txt "how do lamps work" [MODEL]

use std::error::Error;
use std::fs;

use sconce::Reranker;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (texts, query, model) = match &args[..] {
        [texts, query] => (texts, query, "cross-encoder/ms-marco-MiniLM-L6-v2"),
        [texts, query, model] => (texts, query, model.as_str()),
        _ => return Err("usage: rerank TEXTS QUERY [MODEL]".into()),
    };
    let texts = fs::read_to_string(texts)?;
    let texts: Vec<&str> = texts.lines().collect();
    for (score, text) in rerank(&Reranker::open(model)?, query, &texts)? {
        println!("{score:.3} {text}");
    }
    Ok(())
}

/// The texts with their scores, best first.
pub(crate) fn rerank<'a>(
    reranker: &Reranker,
    query: &str,
    texts: &[&'a str],
) -> Result<Vec<(f32, &'a str)>, sconce::Error> {
    let ranked = reranker.rank(query, texts)?;
    Ok(ranked.iter().map(|score| (score.score, texts[score.index])).collect())
}
