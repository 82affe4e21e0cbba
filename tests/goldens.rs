//! The stack against the reference implementation, stage by stage, on the tiny models of
//! `scripts/make_fixtures.py`.

mod support;

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use sconce::input::{At, Record, Spot};
use sconce::model::Source;
use sconce::model::config::Config;
use sconce::model::families::{FAMILIES, Family};
use sconce::model::names::Names;
use sconce::model::weights::Checkpoint;
use sconce::nn::{Encoder, Engine, Pool, Pooling, RaggedBatch, Random};
use sconce::ops::activation::NAMES;
use sconce::ops::linear::{LinearWeights, Matrix, reference};
use sconce::run::{Console, Loaded, ModelOptions, Verbosity, load};
use sconce::text::TokenIds;
use serde_json::Value;
use support::{MODELS, assert_close, embed, embedding, first_difference, fixture, rows};

const ATOL: f32 = 1e-5;
const RTOL: f32 = 1e-5;

fn open(model: &str) -> Loaded {
    let options = ModelOptions::of(Source {
        model: fixture(model).display().to_string(),
        revision: "main".into(),
        offline: true,
        progress: false,
    });
    load(&options, &Console::new(Verbosity::Quiet, false)).expect("the fixture loads")
}

fn tensors(model: &str) -> HashMap<String, Tensor> {
    let path = fixture(model).join("goldens.safetensors");
    candle_core::safetensors::load(path, &Device::Cpu).expect("goldens load")
}

fn texts(model: &str) -> Vec<Value> {
    let json = std::fs::read(fixture(model).join("goldens.json")).expect("goldens are there");
    serde_json::from_slice(&json).expect("goldens are JSON")
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|t| t.to_vec1()).expect("a tensor of f32")
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn golden_batch(model: &str) -> RaggedBatch {
    let texts: Vec<_> = texts(model).iter().map(|row| (ids(&row["ids"]), ids(&row["type_ids"]))).collect();
    RaggedBatch::new(texts.iter().map(|(ids, types)| (&ids[..], &types[..]))).expect("a batch")
}

#[test]
fn token_and_segment_ids_of_texts_and_pairs() {
    for model in MODELS {
        let tokenizer = open(model).tokenizer;
        let (mut pairs, mut cut) = (0, 0);
        for row in texts(model) {
            let pair = row["pair"].as_str();
            let found: TokenIds = tokenizer.encode(row["text"].as_str().unwrap(), pair).unwrap();
            assert_eq!(found.ids, ids(&row["ids"]), "{model}: {row}");
            assert_eq!(found.type_ids, ids(&row["type_ids"]), "{model}: {row}");
            pairs += usize::from(pair.is_some());
            cut += usize::from(found.cut > 0);
        }
        assert!(pairs >= 3 && cut >= 2, "the fixture has pairs and long texts");
    }
}

/// Compares every stage and fails with the name of the first that differs.
#[test]
fn hidden_states_after_every_stage() {
    for model in MODELS {
        let (loaded, goldens, batch) = (open(model), tensors(model), golden_batch(model));
        let mut stages = 0;
        let observe = |stage: sconce::nn::Stage, hidden: &Tensor| {
            let golden = goldens.get(&stage.to_string()).unwrap_or_else(|| panic!("no golden for {stage}"));
            assert_eq!(hidden.dims(), golden.dims(), "{model}: shape after {stage}");
            if let Some(difference) = first_difference(&flat(hidden), &flat(golden), ATOL, RTOL) {
                panic!("{model}: the first stage that differs is {stage}: {difference}");
            }
            stages += 1;
            Ok(())
        };
        loaded.encoders[0].forward_observed(&batch, observe).expect("the stack runs");
        assert_eq!(stages, 1 + loaded.encoders[0].spec().layers, "{model}: every stage was shown");
    }
}

/// The stack in candle's operations, as a device without kernels of ours runs it: in f32 within the same bounds, and in f16
/// within 2 % of the largest number.
#[test]
fn hidden_states_in_plain_operations() {
    for model in MODELS {
        let (goldens, batch) = (tensors(model), golden_batch(model));
        let config = Config::read(&fixture(model).join("config.json")).unwrap();
        let family = Family::of(&config).unwrap();
        let spec = family.spec(&config).unwrap();
        let checkpoint = Checkpoint::open(&fixture(model).join("model.safetensors")).unwrap();
        for dtype in [DType::F32, DType::F16] {
            let mut reader = checkpoint.reader(family.names).unwrap();
            reader.turn_to(Engine::Device { device: Device::Cpu, dtype });
            let encoder = Encoder::load(&spec, &mut reader).unwrap();
            let observe = |stage: sconce::nn::Stage, hidden: &Tensor| {
                assert_eq!(hidden.dtype(), dtype, "{model}: {stage}");
                let golden = flat(&goldens[&stage.to_string()]);
                let most = golden.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                let (atol, rtol) = if dtype == DType::F32 { (ATOL, RTOL) } else { (0.02 * most, 0.0) };
                let found = flat(&hidden.to_dtype(DType::F32)?);
                if let Some(difference) = first_difference(&found, &golden, atol, rtol) {
                    panic!("{model} in {dtype:?}: the first stage that differs is {stage}: {difference}");
                }
                Ok(())
            };
            encoder.forward_observed(&batch, observe).expect("the stack runs");
        }
    }
}

/// Two threads share a GPU only where no product is candle's.
#[test]
fn stacks_whose_batches_overlap_on_a_gpu() {
    let overlaps = |config: &str, dtype| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(config);
        let config = Config::read(&path).unwrap();
        let mut spec = Family::of(&config).unwrap().spec(&config).unwrap();
        // Weights of few rows do.
        spec.vocab_size = 8;
        let engine = Engine::Device { device: Device::Cpu, dtype };
        Encoder::load(&spec, &mut Random::new(1, engine)).unwrap().may_overlap()
    };
    assert!(
        overlaps("configs/bert-mini.json", DType::BF16) && overlaps("configs/bert-mini.json", DType::F16)
    );
    assert!(!overlaps("configs/bert-mini.json", DType::F32), "products of f32 are candle's");
    // Sizes that no kernel takes, and biases of scores.
    for model in ["bert-tiny", "mpnet", "deberta-v2", "talking-heads-after", "alibi"] {
        assert!(!overlaps(&format!("tests/fixtures/{model}/config.json"), DType::BF16), "{model}");
    }
}

#[test]
fn poolings() {
    for model in MODELS {
        let (loaded, goldens, batch) = (open(model), tensors(model), golden_batch(model));
        let hidden = loaded.encoders[0].forward(&batch).unwrap();
        let pools = [Pool::Cls, Pool::Max, Pool::Mean, Pool::MeanSqrtLen, Pool::WeightedMean, Pool::Last];
        for pool in pools {
            let found = flat(&Pooling::Text(vec![pool]).forward(&hidden, &batch, 0).unwrap());
            if let Some(difference) =
                first_difference(&found, &flat(&goldens[&format!("pooled.{pool}")]), ATOL, RTOL)
            {
                panic!("{model}: {pool}: {difference}");
            }
        }
    }
}

/// Every row of the family table, and every way of naming in it, has a fixture, and every fixture is compared.
#[test]
fn every_row_of_the_table_has_a_fixture() {
    let mut folders: Vec<String> = std::fs::read_dir(fixture(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists() && path.join("goldens.safetensors").exists())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    folders.sort();
    let mut models: Vec<&str> = MODELS.to_vec();
    models.sort();
    assert_eq!(folders, models);

    let ways: Vec<*const Names> = MODELS
        .iter()
        .map(|model| {
            let config = Config::read(&fixture(model).join("config.json")).unwrap();
            let tensors =
                candle_core::safetensors::load(fixture(model).join("model.safetensors"), &Device::Cpu);
            let tensors = tensors.unwrap();
            let names = Family::of(&config).unwrap().names;
            std::ptr::from_ref(Names::choose(names, |name| tensors.contains_key(name)).unwrap().0)
        })
        .collect();
    for family in FAMILIES {
        for (way, names) in family.names.iter().enumerate() {
            assert!(ways.contains(&std::ptr::from_ref(names)), "{:?}, names {way}", family.model_types);
        }
    }
}

/// The command against sentence-transformers' own `encode`, the pipeline read from the model's files.
#[test]
fn sentence_vectors_of_the_command() {
    for model in MODELS {
        let texts = texts(model);
        let singles: Vec<_> =
            texts.iter().filter(|r| r["pair"].is_null()).map(|r| r["text"].as_str().unwrap()).collect();
        let mut args = vec!["--"];
        args.extend(&singles);
        let found: Vec<f32> = rows(&embed(model, args)).iter().flat_map(embedding).collect();
        assert_close(&found, &flat(&tensors(model)["sentence"]), ATOL, RTOL);
    }
}

/// A pair goes through the whole path, its second text in the second segment.
#[test]
fn pairs_reach_the_encoder() {
    let (loaded, goldens) = (open("bert-tiny"), tensors("bert-tiny"));
    let records: Vec<Record> = texts("bert-tiny")
        .iter()
        .map(|row| Record {
            place: Spot { source: "golden".into(), at: At::Whole },
            id: None,
            text: row["text"].as_str().unwrap().into(),
            pair: row["pair"].as_str().map(String::from),
            kept: Vec::new(),
        })
        .collect();
    let embedder = sconce::run::Embedder {
        tokenizer: loaded.tokenizer,
        encoders: loaded.encoders,
        pooling: Pooling::Text(vec![Pool::Mean]),
        heads: vec![],
        dimensions: 36,
        dtype: sconce::output::Dtype::F32,
        prompt: String::new(),
        left_out: 0,
        on_long: sconce::run::OnLong::Truncate,
        chunking: None,
        batch_tokens: 30,
    };
    let tokens: Vec<_> = records.iter().map(|record| embedder.tokenize(record).unwrap()).collect();
    let values = |row: sconce::run::Embedded| match row.vector.numbers {
        sconce::output::Numbers::F32(values) => values,
        other => panic!("{other:?}"),
    };
    let encoded = embedder.embed(&tokens, &embedder.encoders[0]).unwrap();
    let vectors: Vec<Vec<f32>> = encoded.into_iter().flatten().map(values).collect();
    assert_close(&vectors.concat(), &flat(&goldens["pooled.mean"]), ATOL, RTOL);
}

#[test]
fn activations_of_the_table() {
    let goldens = candle_core::safetensors::load(fixture("activations.safetensors"), &Device::Cpu).unwrap();
    let x = &goldens["x"];
    let n = x.elem_count();
    // Through the operation that the stack calls: a product with 1 and a bias of 0.
    let column = x.reshape((n, 1)).unwrap();
    let one = Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap();
    let zero = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let layer = LinearWeights::new(Matrix::new(one.clone(), &Engine::default()).unwrap(), Some(zero.clone()))
        .unwrap();
    for (name, activation) in NAMES {
        for (path, found) in [
            ("CPU", layer.forward(&column, *activation, None).unwrap()),
            ("reference", reference(&column, &one, Some(&zero), *activation, None).unwrap()),
        ] {
            if let Some(difference) = first_difference(&flat(&found), &flat(&goldens[*name]), 2e-6, 1e-6) {
                panic!("{name} ({path}): {difference}");
            }
        }
    }
}
