//! `candle_peer MODEL_DIR MAX_LENGTH BATCH`: loads the BERT of candle-transformers in f32 and prints its
//! version as a line of JSON. Each line of standard input is the path of a text file, one text per line,
//! optionally followed by a tab and the path of a .npy file for the vectors, which are mean-pooled and
//! normalised. For each it prints `{"seconds": …}`.

use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use anyhow::{Error, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use tokenizers::{Tokenizer, TruncationParams};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, folder, limit, batch] = &args[..] else {
        anyhow::bail!("usage: candle_peer MODEL_DIR MAX_LENGTH BATCH")
    };
    let folder = Path::new(folder);
    let config: Config = serde_json::from_reader(std::fs::File::open(folder.join("config.json"))?)?;
    let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(Error::msg)?;
    let truncation = TruncationParams { max_length: limit.parse()?, ..Default::default() };
    tokenizer.with_padding(None).with_truncation(Some(truncation)).map_err(Error::msg)?;
    let weights = [folder.join("model.safetensors")];
    // SAFETY: the mapped file has to stay unchanged; nothing writes to the checkpoint during a benchmark.
    let weights = unsafe { VarBuilder::from_mmaped_safetensors(&weights, DType::F32, &Device::Cpu)? };
    let model = BertModel::load(weights, &config)?;
    println!("{}", serde_json::json!({"version": "candle-transformers 0.11.1"}));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (source, target) =
            line.split_once('\t').map_or((line.as_str(), None), |(source, target)| (source, Some(target)));
        let texts = std::fs::read_to_string(source)?;
        let texts: Vec<&str> = texts.lines().collect();
        let start = Instant::now();
        let vectors = embed(&model, &tokenizer, &texts, batch.parse()?)?;
        println!("{}", serde_json::json!({"seconds": start.elapsed().as_secs_f64()}));
        if let Some(target) = target {
            vectors.write_npy(target)?;
        }
    }
    Ok(())
}

/// Vectors (N, H) in the order of the texts. Batches have texts of similar length, the longest first.
fn embed(model: &BertModel, tokenizer: &Tokenizer, texts: &[&str], batch: usize) -> Result<Tensor> {
    let encodings = tokenizer.encode_batch(texts.to_vec(), true).map_err(Error::msg)?;
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&text| std::cmp::Reverse(encodings[text].len()));
    let mut rows = Vec::new();
    for texts in order.chunks(batch) {
        let width = encodings[texts[0]].len();
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for &text in texts {
            let tokens = encodings[text].get_ids();
            ids.extend((0..width).map(|at| tokens.get(at).copied().unwrap_or(0)));
            mask.extend((0..width).map(|at| (at < tokens.len()) as u32));
        }
        let ids = Tensor::from_vec(ids, (texts.len(), width), &Device::Cpu)?;
        let mask = Tensor::from_vec(mask, (texts.len(), width), &Device::Cpu)?;
        let hidden = model.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
        // Sum in place of the mean: normalisation gives the same vector.
        let sums = hidden.broadcast_mul(&mask.to_dtype(DType::F32)?.unsqueeze(2)?)?.sum(1)?;
        rows.push(sums.broadcast_div(&sums.sqr()?.sum_keepdim(1)?.sqrt()?)?);
    }
    let mut row_of = vec![0u32; order.len()];
    order.iter().enumerate().for_each(|(row, &text)| row_of[text] = row as u32);
    Ok(Tensor::cat(&rows, 0)?.index_select(&Tensor::new(row_of, &Device::Cpu)?, 0)?)
}
