//! Embeds the lines of a text file into JSON lines, which `sconce search`, [`sconce::VectorFile`] and
//! everything that reads JSON take.
//!
//!     cargo run --release --example embed_file -- texts.txt vectors.jsonl [MODEL]

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use sconce::Embedder;

/// Lines that are embedded together: enough to keep all threads busy, and few enough for any file to fit in
/// memory.
const LINES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (input, output, model) = match &args[..] {
        [input, output] => (input, output, "sentence-transformers/all-MiniLM-L6-v2"),
        [input, output, model] => (input, output, model.as_str()),
        _ => return Err("usage: embed_file TEXTS VECTORS [MODEL]".into()),
    };
    let truncated = embed_file(&Embedder::open(model)?, input.as_ref(), output.as_ref())?;
    println!("{output}: {truncated} texts were longer than the model's limit and are truncated");
    Ok(())
}

/// Writes a row with the text and its vector for each line. Returns how many texts were truncated.
pub(crate) fn embed_file(embedder: &Embedder, input: &Path, output: &Path) -> Result<usize, Box<dyn Error>> {
    let mut lines = BufReader::new(File::open(input)?).lines();
    let mut rows = BufWriter::new(File::create(output)?);
    let mut truncated = 0;
    loop {
        let texts: Vec<String> = lines.by_ref().take(LINES).collect::<Result<_, _>>()?;
        if texts.is_empty() {
            break;
        }
        let embeddings = embedder.embed(&texts)?;
        truncated += embeddings.iter().filter(|embedding| embedding.truncated_tokens > 0).count();
        for (text, embedding) in texts.iter().zip(&embeddings) {
            serde_json::to_writer(
                &mut rows,
                &serde_json::json!({"text": text, "embedding": embedding.vector}),
            )?;
            rows.write_all(b"\n")?;
        }
    }
    rows.flush()?;
    Ok(truncated)
}
