//! `sconce verify`: passes on the vectors of the reference implementation, and fails by each bound and for
//! each unusable file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use candle_core::{Device, Tensor};

use crate::support::{assert_fails, copy_folder, embed, fixture, sconce, stderr, stdout};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The reference of sentence-transformers for bert-tiny, to be changed, and the folder for it.
struct Case {
    folder: TempDir,
    rows: Vec<Value>,
}

impl Case {
    fn new() -> Self {
        let lines = fs::read_to_string(fixture("similarity/reference.jsonl")).unwrap();
        let rows = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Case { folder: tempfile::tempdir().unwrap(), rows }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the rows and compares bert-tiny with them.
    fn verify(&self, args: &[&str]) -> Output {
        let lines: String = self.rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(self.path("ref.jsonl"), lines).unwrap();
        verify(&self.path("ref.jsonl"), args)
    }

    /// The vectors as an npy array of f32 `(rows, dimensions)`, and the texts one per line.
    fn npy(&self, dtype: &str) -> Vec<u8> {
        let texts: String =
            self.rows.iter().map(|row| format!("{}\n", row["text"].as_str().unwrap())).collect();
        fs::write(self.path("texts.txt"), texts).unwrap();
        let shape = format!("({}, {})", self.rows.len(), self.rows[0]["embedding"].as_array().unwrap().len());
        let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}");
        let header = format!("{header:<117}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        let elements = self.rows.iter().flat_map(|row| row["embedding"].as_array().unwrap());
        elements.for_each(|x| bytes.extend((x.as_f64().unwrap() as f32).to_le_bytes()));
        bytes
    }

    /// Writes an npy file and compares bert-tiny with it.
    fn verify_npy(&self, bytes: &[u8]) -> Output {
        fs::write(self.path("ref.npy"), bytes).unwrap();
        verify(&self.path("ref.npy"), &["-i", self.path("texts.txt").to_str().unwrap()])
    }
}

fn verify(against: &Path, args: &[&str]) -> Output {
    let mut command = sconce();
    command.args(["verify", "--quiet", "-m"]).arg(fixture("bert-tiny")).arg("--against").arg(against);
    command.args(args).output().expect("sconce starts")
}

/// A copy of bert-tiny with a hidden element that is a thousand times as large as the others. No matrix reads
/// it, and the last norm drops it, so that f32 bears it; in a group of 8-bit integers it leaves no steps for
/// the others.
fn with_outlier(folder: &Path) {
    copy_folder(&fixture("bert-tiny"), folder);
    let path = folder.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    const OUTLIER: f32 = 1000.0;
    for (name, tensor) in &mut tensors {
        let mut values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let inputs = tensor.dim(candle_core::D::Minus1).unwrap();
        if name.ends_with("LayerNorm.weight") {
            if !name.starts_with("embeddings") {
                values.iter_mut().for_each(|weight| *weight *= OUTLIER);
            }
            values[3] = if name == "encoder.layer.1.output.LayerNorm.weight" { 0.0 } else { OUTLIER };
        } else if ["query.weight", "key.weight", "value.weight", "intermediate.dense.weight"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            values.iter_mut().skip(3).step_by(inputs).for_each(|weight| *weight = 0.0);
        } else {
            continue;
        }
        *tensor = Tensor::from_vec(values, tensor.dims(), &Device::Cpu).unwrap();
    }
    candle_core::safetensors::save(&tensors, &path).unwrap();
}

/// Without a reference, with a cache of its own.
fn types(model: &Path, cache: &Path, command: &str, args: &[&str]) -> Output {
    let mut command_line = sconce();
    command_line.env("SCONCE_CACHE", cache).args([command, "-m"]).arg(model).args(args);
    command_line.output().expect("sconce starts")
}

#[test]
fn the_types_of_a_model_are_compared_with_f32() {
    let folder = tempfile::tempdir().unwrap();
    let outlier = folder.path().join("outlier");
    with_outlier(&outlier);
    let (plain, cache) = (fixture("bert-tiny"), folder.path().join("cache"));
    let all = report(&types(&plain, &cache, "verify", &["--json"]));
    assert_eq!(
        (&all["rows"], &all["dimensions"], &all["reference"]),
        (&json!(32), &json!(36), &json!("f32"))
    );
    let found: Vec<&Value> = all["types"].as_array().unwrap().iter().map(|found| &found["dtype"]).collect();
    assert_eq!(found, ["bf16x3", "bf16", "int8"]);
    for found in all["types"].as_array().unwrap() {
        assert_eq!(found["passed"], true, "{found}");
        let (least, mean) = (found["min_cosine"].as_f64().unwrap(), found["mean_cosine"].as_f64().unwrap());
        assert!(least <= mean && least > 0.99 && mean < 1.0 + 1e-12, "{found}");
    }
    // The vectors are those of embed.
    let texts = folder.path().join("texts.txt");
    fs::write(&texts, "the lamp\na wick and a key\n").unwrap();
    let texts = texts.to_str().unwrap();
    let vectors = |dtype| -> Vec<Vec<f64>> {
        let found = types(&plain, &cache, "embed", &["-i", texts, "--dtype", dtype]);
        let rows = crate::support::rows(&found);
        let vector =
            |row: &Value| row["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        rows.iter().map(vector).collect()
    };
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosines = vectors("f32")
        .iter()
        .zip(&vectors("int8"))
        .map(|(a, b)| product(a, b) / (product(a, a) * product(b, b)).sqrt())
        .collect::<Vec<_>>();
    let int8 = report(&types(&plain, &cache, "verify", &["--json", "-i", texts, "--dtype", "int8"]));
    assert_eq!((int8["types"].as_array().unwrap().len(), &int8["types"][0]["neighbours"]), (1, &Value::Null));
    let mean = int8["types"][0]["mean_cosine"].as_f64().unwrap();
    assert!((mean - (cosines[0] + cosines[1]) / 2.0).abs() < 1e-6, "{mean} {cosines:?}");

    let page = stdout(&types(&outlier, &cache, "verify", &[]));
    let line =
        |name: &str| page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{page}"));
    assert!(line("int8").contains("not safe: the least cosine"), "{page}");
    assert!(line("bf16x3").ends_with("  safe"), "{page}");
    assert_fails(&types(&outlier, &cache, "verify", &["--dtype", "int8"]), 1, &["--dtype int8 is not safe"]);
    assert!(types(&plain, &cache, "verify", &["--dtype", "int8"]).status.success());
    assert_fails(
        &types(&plain, &cache, "verify", &["--dtype", "int8", "--min-cosine", "1"]),
        1,
        &["is below 1"],
    );
    assert_eq!(types(&plain, &cache, "verify", &["--vector-field", "x"]).status.code(), Some(2));
    assert_fails(&types(&plain, &cache, "verify", &["--text-field", "x"]), 2, &["--input FILE"]);
}

/// At each run, but compared at the first one only.
#[test]
fn a_model_that_int8_does_not_bear_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let (outlier, cache) = (folder.path().join("outlier"), folder.path().join("cache"));
    with_outlier(&outlier);
    let warning = |model: &Path, args: &[&str]| {
        let found = types(model, &cache, "embed", &[&["a", "-q"], args].concat());
        assert!(found.status.success(), "{}", stderr(&found));
        stderr(&found)
    };
    for _ in 0..2 {
        let found = warning(&outlier, &["--dtype", "int8"]);
        assert!(
            found.starts_with("sconce: warning: int8 changes the vectors of this model: over 32 texts, "),
            "{found}"
        );
    }
    let types = fs::read_dir(cache.join("types")).unwrap();
    let files: Vec<_> = types.map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let kept = fs::read_to_string(&files[0]).unwrap();
    let other: Value = serde_json::from_str(&kept).unwrap();
    // It is the outcome that is read, not a new one.
    fs::write(&files[0], json!({"key": other["key"], "outcome": ["it is remembered"]}).to_string()).unwrap();
    assert!(
        warning(&outlier, &["--dtype", "int8"])
            .contains("over 32 texts, it is remembered; pass --dtype bf16")
    );
    fs::write(&files[0], "damaged").unwrap();
    assert!(warning(&outlier, &["--dtype", "int8"]).contains("the least cosine"));
    for args in [&["--dtype", "bf16"][..], &["--dtype", "int8", "--max-memory", "1GB"]] {
        assert_eq!(warning(&outlier, args), "", "{args:?}");
    }
    assert_eq!(warning(&fixture("bert-tiny"), &["--dtype", "int8"]), "");
}

fn report(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|_| panic!("{}", stderr(output)))
}

#[test]
fn the_vectors_of_the_reference_implementation_pass() {
    let case = Case::new();
    let output = case.verify(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = stdout(&output);
    assert!(page.starts_with("22 vectors of 36 dimensions: ") && page.ends_with("\npassed\n"), "{page}");
    let output = case.verify(&["--json"]);
    let report = report(&output);
    assert_eq!(
        (&report["rows"], &report["dimensions"], &report["passed"]),
        (&json!(22), &json!(36), &json!(true))
    );
    assert!(report["max_difference"].as_f64().unwrap() < 1e-6, "{report}");
    assert!(report["min_cosine"].as_f64().unwrap() > 0.999999, "{report}");
    assert_eq!(report["neighbours"], 1.0);
    let bounds = json!({"max_difference": 1e-5, "min_cosine": 0.99999, "min_neighbours": 0.99});
    assert_eq!(report["bounds"], bounds);
}

#[test]
fn arrays_are_compared_with_the_texts_of_another_file() {
    let case = Case::new();
    let output = case.verify_npy(&case.npy("<f4"));
    assert!(output.status.success(), "{}", stderr(&output));
}

/// f16 rounds the reference, so the default bound is wider.
#[test]
fn the_outputs_of_embed_pass() {
    let case = Case::new();
    case.verify(&[]);
    let texts = case.path("ref.jsonl");
    for (name, dtype) in
        [("out.parquet", "f32"), ("out.arrow", "f16"), ("out.csv", "f32"), ("out.jsonl", "f32")]
    {
        let path = case.path(name);
        let args = ["--keep", "text", "--output-dtype", dtype, "-q", "-i", texts.to_str().unwrap(), "-o"];
        assert!(embed("bert-tiny", args.into_iter().chain([path.to_str().unwrap()])).status.success());
        let output = verify(&path, &["--json"]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let difference = report(&output)["max_difference"].as_f64().unwrap();
        assert_eq!(difference > 0.0, dtype == "f16", "{name}: {difference}");
    }
}

/// `--on-null null` writes rows without a vector.
#[test]
fn rows_without_a_vector_are_not_compared() {
    let mut case = Case::new();
    for format in ["jsonl", "parquet", "arrow"] {
        (case.rows[0]["text"], case.rows[3]["text"]) = (Value::Null, Value::Null);
        let lines: String = case.rows.iter().map(|row| format!("{row}\n")).collect();
        let (texts, path) = (case.path("texts.jsonl"), case.path(&format!("out.{format}")));
        fs::write(&texts, lines).unwrap();
        let args = ["--keep", "text", "--on-null", "null", "-q", "-i", texts.to_str().unwrap(), "-o"];
        assert!(embed("bert-tiny", args.into_iter().chain([path.to_str().unwrap()])).status.success());
        let output = verify(&path, &[]);
        assert!(output.status.success(), "{format}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(&format!("2 rows of {} without text and vector", path.display())),
            "{}",
            stderr(&output)
        );
    }
    // The row that differs is that of the file.
    let mut rows: Vec<Value> = fs::read_to_string(case.path("out.jsonl"))
        .unwrap()
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let element = &mut rows[5]["embedding"][0];
    *element = json!(element.as_f64().unwrap() + 0.5);
    case.rows = rows;
    assert_eq!(report(&case.verify(&["--json"]))["max_difference_row"], 5);
}

#[test]
fn other_compute_types_have_other_bounds() {
    let case = Case::new();
    let output = case.verify(&["--dtype", "int8", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = report(&output);
    assert!(report["max_difference"].as_f64().unwrap() > 1e-5, "int8 is used");
    assert_eq!(report["bounds"], json!({"max_difference": null, "min_cosine": 0.99, "min_neighbours": 0.9}));
    let output = case.verify(&["--dtype", "int8", "--max-difference", "1e-5"]);
    assert_fails(&output, 1, &["ref.jsonl: the largest difference", "exceeds 1.0e-5"]);
}

#[test]
fn one_element_that_differs_fails_by_the_difference() {
    let mut case = Case::new();
    let element = &mut case.rows[7]["embedding"][3];
    *element = json!(element.as_f64().unwrap() + 1e-4);
    let output = case.verify(&[]);
    assert_fails(&output, 1, &["the largest difference 1.0e-4 exceeds 1.0e-5; "]);
    let page = stdout(&output);
    assert!(
        page.contains("row 7 (") && page.contains("ref.jsonl line 8)") && page.ends_with("\nfailed\n"),
        "{page}"
    );
    assert!(case.verify(&["--max-difference", "1.1e-4"]).status.success());
}

#[test]
fn a_vector_of_another_direction_fails_by_the_cosine() {
    let mut case = Case::new();
    let elements = case.rows[4]["embedding"].as_array_mut().unwrap();
    elements.iter_mut().step_by(2).for_each(|x| *x = json!(x.as_f64().unwrap() * 1.1));
    let wide = ["--max-difference", "1"];
    let output = case.verify(&wide);
    assert_fails(&output, 1, &["the least cosine 0.99", "is below 0.99999; "]);
    assert!(!stderr(&output).contains("difference 1"), "one bound only");
    let report = report(&case.verify(&[&wide[..], &["--min-cosine", "0.99", "--json"]].concat()));
    assert_eq!((&report["passed"], &report["min_cosine_row"]), (&json!(true), &json!(4)));
    assert!(report["mean_cosine"].as_f64().unwrap() > report["min_cosine"].as_f64().unwrap());
}

#[test]
fn other_neighbours_fail_by_their_share() {
    let mut case = Case::new();
    let mut vectors: Vec<Value> = case.rows.iter().map(|row| row["embedding"].clone()).collect();
    vectors[..11].reverse();
    case.rows.iter_mut().zip(vectors).for_each(|(row, vector)| row["embedding"] = vector);
    let wide = ["--max-difference", "2", "--min-cosine", "-1"];
    assert_fails(&case.verify(&wide), 1, &["% of the nearest neighbours are the same, fewer than 99 %; "]);
    let report = report(&case.verify(&[&wide[..], &["--min-neighbours", "0.1", "--json"]].concat()));
    assert_eq!(report["passed"], true);
    assert!(report["neighbours"].as_f64().unwrap() < 0.99, "{report}");
}

#[test]
fn neighbours_of_few_rows_are_not_compared() {
    let mut case = Case::new();
    case.rows.truncate(11);
    let output = case.verify(&["--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(report(&output)["neighbours"], Value::Null);
}

#[test]
fn a_reference_of_another_model_is_refused() {
    let mut case = Case::new();
    for row in &mut case.rows {
        row["embedding"].as_array_mut().unwrap().truncate(24);
    }
    assert_fails(
        &case.verify(&[]),
        1,
        &["ref.jsonl holds vectors of 24 dimensions, but the model's vectors have 36; "],
    );
    let output = case.verify(&["--dimensions", "24", "--max-difference", "2", "--min-cosine", "0.999"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn rows_that_do_not_fit_are_named() {
    let changed = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut case = Case::new();
        change(&mut case.rows);
        case.verify(&[])
    };
    let no_text = changed(&|rows| drop(rows[2].as_object_mut().unwrap().remove("text")));
    assert_fails(&no_text, 1, &["ref.jsonl line 3", "\"text\""]);
    let no_vector = changed(&|rows| drop(rows[2].as_object_mut().unwrap().remove("embedding")));
    assert_fails(&no_vector, 1, &["ref.jsonl", "row 2 has no vector"]);
    assert_fails(&changed(&|rows| rows[3]["embedding"][5] = Value::Null), 1, &["row 3", "NaN"]);
    let short = changed(&|rows| drop(rows[3]["embedding"].as_array_mut().unwrap().pop()));
    assert_fails(&short, 1, &["row 3 has 35 elements, expected 36"]);
    let word = changed(&|rows| rows[3]["embedding"][0] = json!("a"));
    assert_fails(&word, 1, &["row 3"]);
    assert_fails(&changed(&Vec::clear), 1, &["ref.jsonl is empty"]);
}

#[test]
fn a_vector_that_occurs_twice_in_a_row_is_refused() {
    let case = Case::new();
    case.verify(&[]);
    let lines = fs::read_to_string(case.path("ref.jsonl")).unwrap();
    fs::write(case.path("ref.jsonl"), lines.replacen('{', "{\"embedding\":[1.0],", 3)).unwrap();
    let output = verify(&case.path("ref.jsonl"), &[]);
    assert_fails(&output, 1, &["ref.jsonl: row 0", "duplicate field `embedding`"]);
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let mut case = Case::new();
    let array = case.npy("<f4");
    assert_fails(&case.verify_npy(&array[..array.len() - 3]), 1, &["ref.npy is truncated"]);
    assert_fails(&case.verify_npy(&case.npy("<i4")), 1, &["ref.npy holds elements of type <i4"]);
    let mut nan = array.clone();
    let third_row = nan.len() - 20 * 36 * 4;
    nan[third_row..third_row + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert_fails(&case.verify_npy(&nan), 1, &["ref.npy: the vector of row 2 has NaN"]);
    fs::write(case.path("ref.npy"), &array).unwrap();
    assert_fails(&verify(&case.path("ref.npy"), &[]), 2, &["--against", "ref.npy", "pass --input FILE"]);
    case.rows.pop();
    let fewer = case.npy("<f4");
    case = Case { folder: case.folder, ..Case::new() };
    case.npy("<f4");
    assert_fails(&case.verify_npy(&fewer), 1, &["ref.npy holds 21 vectors, but ", "texts.txt has 22 texts"]);
}

#[test]
fn quantized_vectors_chunks_and_missing_files_are_refused() {
    let case = Case::new();
    case.verify(&[]);
    let texts = case.path("ref.jsonl");
    let embed_to = |args: &[&str]| {
        let path = case.path("out.parquet");
        let input = ["-q", "--keep", "text", "-i", texts.to_str().unwrap(), "-o", path.to_str().unwrap()];
        let output = embed("bert-tiny", input.iter().chain(args));
        assert!(output.status.success(), "{}", stderr(&output));
        verify(&path, &[])
    };
    assert_fails(&embed_to(&["--output-dtype", "int8"]), 1, &["out.parquet holds int8 vectors"]);
    assert_fails(&embed_to(&["--chunk", "12"]), 1, &["out.parquet has one row per chunk"]);
    assert_fails(&verify(&case.path("none.jsonl"), &[]), 1, &["none.jsonl"]);
    let output = sconce().args(["verify", "--against", "a", "--min-cosine", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
