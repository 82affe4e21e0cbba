//! The real all-MiniLM-L6-v2, downloaded by `scripts/fetch_model.sh`.

use crate::support;
use std::path::{Path, PathBuf};

use crate::support::{assert_close, embedding, fixture, rows, sconce, stdout};
use candle_core::Device;

#[test]
fn vectors_are_those_of_sentence_transformers() {
    let json = std::fs::read(fixture("all-MiniLM-L6-v2.json")).unwrap();
    let texts: Vec<String> = serde_json::from_slice(&json).unwrap();
    let goldens =
        candle_core::safetensors::load(fixture("all-MiniLM-L6-v2.safetensors"), &Device::Cpu).unwrap();
    let goldens: Vec<Vec<f32>> = goldens["sentence"].to_vec2().unwrap();

    let mut command = sconce();
    support::real_model(&mut command);
    let found = rows(&command.args(["embed", "--quiet", "--"]).args(&texts).output().unwrap());
    assert_eq!(found.len(), goldens.len());
    for (row, golden) in found.iter().zip(&goldens) {
        assert_close(&embedding(row), golden, 1e-6, 0.0);
    }
    assert_eq!(found.iter().filter(|row| row["truncated"] == true).count(), 2);
}

/// Without `--model`, `sconce embed` uses this model; similar texts have similar vectors.
#[test]
fn the_default_model_embeds() {
    let mut command = sconce();
    support::real_model(&mut command);
    let texts = ["A lamp in the window", "A light left on in the window", "Quarterly earnings rose"];
    let found: Vec<Vec<f32>> =
        rows(&command.arg("embed").args(texts).output().unwrap()).iter().map(embedding).collect();
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!(cosine(&found[0], &found[1]) > 0.6);
    assert!(cosine(&found[0], &found[2]) < 0.3);
}

/// Accuracy of bf16 and int8 on the prose of this repository: cosines with the f32 vectors, and agreement of
/// the ten nearest neighbours of each text.
#[test]
fn vectors_in_bf16_and_int8_are_close_to_f32() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts: Vec<String> = Vec::new();
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/files.md", "docs/models.md"] {
        let page = std::fs::read_to_string(root.join(name)).unwrap();
        texts.extend(page.lines().filter(|line| line.len() > 20).map(String::from));
    }
    let vectors = |dtype: &str| -> Vec<Vec<f32>> {
        let mut command = sconce();
        support::real_model(&mut command);
        command.args(["embed", "--quiet", "--dtype", dtype, "--"]).args(&texts);
        rows(&command.output().unwrap()).iter().map(embedding).collect()
    };
    let cosine =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let nearest = |all: &[Vec<f32>], text: usize| -> Vec<usize> {
        let mut others: Vec<usize> = (0..all.len()).filter(|other| *other != text).collect();
        others.sort_by(|a, b| cosine(&all[text], &all[*b]).total_cmp(&cosine(&all[text], &all[*a])));
        others.truncate(10);
        others
    };
    let exact = vectors("f32");
    for (dtype, min_mean, min_cosine, min_agreement) in
        [("bf16", 0.99998, 0.9999, 0.98), ("int8", 0.9994, 0.9980, 0.965)]
    {
        let found = vectors(dtype);
        assert_ne!(found, exact, "{dtype} is used");
        let cosines: Vec<f64> = found.iter().zip(&exact).map(|(found, exact)| cosine(found, exact)).collect();
        let mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
        assert!(mean >= min_mean, "{dtype}: mean cosine {mean}");
        let worst = cosines.iter().copied().fold(1.0, f64::min);
        assert!(worst >= min_cosine, "{dtype}: lowest cosine {worst}");
        let common = |text: usize| {
            let exact = nearest(&exact, text);
            nearest(&found, text).iter().filter(|other| exact.contains(other)).count()
        };
        let agreed = (0..texts.len()).map(common).sum::<usize>() as f64 / (10 * texts.len()) as f64;
        assert!(agreed >= min_agreement, "{dtype}: {agreed} of the ten nearest agree");
    }
}

#[test]
fn inspect_shows_the_configuration() {
    let mut command = sconce();
    support::real_model(&mut command);
    let page = stdout(&command.args(["inspect", "--tensors"]).output().unwrap());
    for line in [
        "  total                                                       22,565,376",
        "  layers            6",
        "  heads             12 × 32",
        "  max length        256 tokens (max_seq_length in sentence_bert_config.json)",
        "  normalize         yes (2_Normalize)",
        "  unused   pooler.dense.bias",
        "  used     embeddings.word_embeddings.weight [30522, 384] F32",
    ] {
        assert!(page.lines().any(|found| found == line), "no {line:?} in\n{page}");
    }
    assert!(page.contains("  pooling           mean (1_Pooling/config.json)"), "{page}");
}

#[test]
fn download_prints_the_path() {
    let mut command = sconce();
    support::real_model(&mut command);
    let output = command.args(["download", "sentence-transformers/all-MiniLM-L6-v2"]).output().unwrap();
    let folder = PathBuf::from(stdout(&output).trim());
    assert!(folder.join("model.safetensors").exists());
}
