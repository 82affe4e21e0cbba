//! `EmbeddedTexts`: texts in memory have the vectors of `sconce embed`, to the last bit.

use crate::support::{embed, embedding, fixture, rows};
use anyhow::Result;
use sconce::engine::{Engine, TaskInput};
use sconce::hub::Source;
use sconce::load::{ModelOptions, load};
use sconce::neighbours::{Encoded, Similarity};
use sconce::sys::console::{Console, Verbosity};
use sconce::task::{
    EmbeddedTexts, Embedder, OnLong, PromptChoice, TextEncoder, TextError, VectorOptions, engine,
};
use sconce::text::Chunking;

const TRUNCATE: VectorOptions = VectorOptions::new(OnLong::Truncate);

fn embedder(model: &str, options: &VectorOptions) -> Embedder {
    let source = Source {
        model: fixture(model).display().to_string(),
        revision: "main".into(),
        dimensions: None,
        offline: true,
        cache: None,
        progress: false,
        silent: false,
    };
    let console = Console::new(Verbosity::Quiet, false);
    let loaded = load(&ModelOptions::of(source), &console).expect("the fixture loads");
    Embedder::new(loaded, options, &console).expect("the options fit the model")
}

/// Empty, short and long texts.
fn texts() -> Vec<String> {
    let words = ["lamp", "a candle", "burns", "Ünïcödé", "灯", "key,"];
    (0..90)
        .map(|i| {
            (0..i * 7 % 61).map(|word| words[(i + word * word) % words.len()]).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|x| x.to_bits()).collect()).collect()
}

/// An engine for the texts of this file.
fn engine_of(model: &str, options: &VectorOptions) -> Engine<TextEncoder> {
    engine(TextEncoder::Dense(Box::new(embedder(model, options)))).expect("the model fits into memory")
}

fn try_embed(engine: &Engine<TextEncoder>, texts: &[&str]) -> Result<EmbeddedTexts> {
    EmbeddedTexts::embed(engine, &texts.iter().map(|text| TaskInput::new(text)).collect::<Vec<_>>())
}

fn embed_all(engine: &Engine<TextEncoder>, texts: &[String]) -> EmbeddedTexts {
    try_embed(engine, &texts.iter().map(String::as_str).collect::<Vec<_>>()).expect("texts are embedded")
}

fn bits_of(embedded: &EmbeddedTexts) -> Vec<Vec<u32>> {
    bits(&embedded.vectors.iter().filter_map(Encoded::dense).map(<[f32]>::to_vec).collect::<Vec<_>>())
}

/// Compares with the rows of `sconce embed`, with all texts at once, in reverse, in parts, and alone.
fn check(model: &str, options: &VectorOptions, args: &[&str]) {
    let (texts, engine) = (texts(), engine_of(model, options));
    let args = args.iter().map(|arg| (*arg).to_owned()).chain(["--".to_owned()]).chain(texts.clone());
    let expected = rows(&embed(model, ["--quiet".to_owned()].into_iter().chain(args)));
    let vectors: Vec<Vec<f32>> = expected.iter().map(embedding).collect();
    let all = embed_all(&engine, &texts);
    assert_eq!(bits_of(&all), bits(&vectors), "{model}");
    let tokens: Vec<u64> = expected.iter().map(|row| row["tokens"].as_u64().unwrap()).collect();
    assert!(all.tokens.iter().map(|tokens| *tokens as u64).eq(tokens));
    let truncated = expected.iter().map(|row| row["truncated"].as_bool().unwrap());
    assert!(all.truncated_tokens.iter().map(|removed| *removed > 0).eq(truncated));
    let mut reversed = texts.clone();
    reversed.reverse();
    let mut found = bits_of(&embed_all(&engine, &reversed));
    found.reverse();
    assert_eq!(found, bits(&vectors), "{model} in reverse");
    for part in [1, 2, 7] {
        for start in (0..texts.len()).step_by(13) {
            let range = start..texts.len().min(start + part);
            let found = embed_all(&engine, &texts[range.clone()]);
            assert_eq!(bits_of(&found), bits(&vectors[range]), "{model}: {part} from {start} on");
        }
    }
}

#[test]
fn vectors_have_the_bits_of_embed_in_any_order_and_number() {
    check("bert-tiny", &TRUNCATE, &[]);
    check("modernbert", &TRUNCATE, &[]);
    check("pipelines/two-denses", &TRUNCATE, &[]);
    let prompt = Some(PromptChoice::Text("key: ".into()));
    let options = VectorOptions { prompt, dimensions: Some(7), normalize: Some(true), ..TRUNCATE };
    check("pipelines/dense", &options, &["--prompt", "key: ", "--dimensions", "7", "--normalize"]);
}

#[test]
fn the_mean_over_chunks_has_the_bits_of_embed() {
    let options = VectorOptions { on_long: OnLong::Mean, ..TRUNCATE };
    check("bert-tiny", &options, &["--on-long", "mean"]);
    let long = embed_all(&engine_of("bert-tiny", &options), &["lamp ".repeat(100)]);
    assert!(long.sequences[0] > 1 && long.truncated_tokens[0] == 0);
}

#[test]
fn no_texts_have_no_vectors() {
    assert_eq!(embed_all(&engine_of("bert-tiny", &TRUNCATE), &[]), EmbeddedTexts::default());
}

#[test]
fn the_first_text_without_a_vector_is_named() {
    let engine = engine_of("bert-tiny", &VectorOptions { on_long: OnLong::Error, ..TRUNCATE });
    let long = "lamp ".repeat(100);
    let error = try_embed(&engine, &["a", &long, "b", &long]).unwrap_err();
    assert!(error.to_string().starts_with("text 2 has 102 tokens, over the limit"), "{error}");
    assert_eq!(error.downcast::<TextError>().unwrap().index, 1);
}

#[test]
fn chunks_are_refused() {
    let chunking = Some(Chunking { tokens: 12, overlap: 0, late: false });
    let error =
        try_embed(&engine_of("bert-tiny", &VectorOptions { chunking, ..TRUNCATE }), &["a"]).unwrap_err();
    assert!(error.is::<sconce::error::UsageError>() && error.to_string().contains("--chunk"), "{error}");
}

#[test]
fn a_model_without_a_similarity_function_has_the_cosine() {
    assert_eq!(embedder("bert-tiny", &TRUNCATE).similarity, Similarity::Cosine);
}

/// Equal texts are encoded once, and have rows of their own nevertheless.
#[test]
fn equal_texts_are_encoded_once() {
    let engine = engine_of("bert-tiny", &TRUNCATE);
    let mut distinct = texts();
    distinct.sort();
    distinct.dedup();
    let count = distinct.len() as u64;
    let repeated = |texts: &[String]| texts.len() as u64 - count;
    let first = embed_all(&engine, &texts());
    assert_eq!(engine.repeated(), repeated(&texts()));
    let all = [texts(), texts(), vec![texts()[3].clone(); 500]].concat();
    let found = embed_all(&engine, &all);
    let expected = bits_of(&first);
    let third = vec![expected[3].clone(); 500];
    assert_eq!(bits_of(&found), [expected.clone(), expected, third].concat());
    assert_eq!(engine.repeated(), repeated(&texts()) + repeated(&all));
}
