//! `--shard I/N`: the outputs of all shards, one after another, are the output of one run, and `sconce merge`
//! joins them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::damage::malformed_parquet;
use crate::support::{assert_fails, fixture, kill_after_first_save, sconce, stderr};

const SHARDS: usize = 3;

/// A folder with inputs.
struct Inputs {
    folder: TempDir,
}

impl Inputs {
    /// A jsonl file with unreadable, empty and long records, whose ids are numbers in the first records and
    /// texts in the last.
    fn new(records: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let line = |i: usize| match i % 17 {
            5 => "{\"text\": 7}".to_owned(),
            9 => json!({"text": " ", "id": i, "year": i}).to_string(),
            11 => json!({"text": "lamp ".repeat(60), "id": i, "year": i}).to_string(),
            n if i > records / 2 => {
                json!({"text": "the wick ".repeat(n), "id": format!("n{i}"), "year": 0.5}).to_string()
            }
            n => json!({"text": "the wick ".repeat(n), "id": i, "year": i}).to_string(),
        };
        let lines: Vec<String> = (0..records).map(line).collect();
        fs::write(folder.path().join("texts.jsonl"), lines.join("\n")).unwrap();
        Inputs { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, input: &str, output: &str, args: &[&str]) -> Command {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(self.path(input));
        command.arg("-o").arg(self.path(output)).args(["-q", "--on-error", "skip"]).args(args);
        command
    }

    #[track_caller]
    fn run(&self, input: &str, output: &str, args: &[&str]) {
        let run = self.command(input, output, args).output().unwrap();
        assert!(matches!(run.status.code(), Some(0 | 3)), "{}", stderr(&run));
    }

    /// Writes the whole output and the shards, and merges these.
    #[track_caller]
    fn merged(&self, input: &str, format: &str, args: &[&str]) -> [PathBuf; 2] {
        self.run(input, &format!("whole.{format}"), args);
        let parts: Vec<String> = (1..=SHARDS).map(|i| format!("part-{i}.{format}")).collect();
        for (part, i) in parts.iter().zip(1..) {
            self.run(input, part, &[args, &["--shard", &format!("{i}/{SHARDS}")]].concat());
        }
        let merged = format!("merged.{format}");
        let run = self.merge(&merged, &parts.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(run.status.success(), "{}", stderr(&run));
        [self.path(&format!("whole.{format}")), self.path(&merged)]
    }

    fn merge(&self, output: &str, parts: &[&str]) -> Output {
        let parts = parts.iter().map(|part| self.path(part));
        sconce().args(["merge", "-q"]).arg(self.path(output)).args(parts).output().unwrap()
    }
}

/// Asserts that two files are equal, with the files beside them that `suffixes` name.
#[track_caller]
fn assert_same([whole, merged]: &[PathBuf; 2], suffixes: &[&str]) {
    for suffix in suffixes {
        let read = |path: &Path| fs::read(format!("{}{suffix}", path.display())).unwrap();
        assert!(read(whole) == read(merged), "{}{suffix} differs", merged.display());
    }
}

#[test]
fn merged_shards_have_the_bytes_of_one_run_in_every_format() {
    let inputs = Inputs::new(200);
    for format in ["jsonl", "csv", "parquet", "arrow", "npy", "safetensors"] {
        let keep: &[&str] = if ["npy", "safetensors"].contains(&format) { &[] } else { &["--keep", "year"] };
        for extra in
            [&["--skip-empty", "--on-long", "skip"][..], &["--limit", "123"], &["--output-dtype", "int8"]]
        {
            let files = inputs.merged("texts.jsonl", format, &[keep, extra].concat());
            assert_same(&files, &["", ".ledger.jsonl"]);
            if format == "npy" {
                assert_same(&files, &[".meta.json"]);
            }
        }
    }
}

/// Columns of a Parquet input have Arrow types, which the file of a shard does not tell from others. The row
/// groups are those of one run.
#[test]
fn merged_shards_of_a_parquet_input_have_the_row_groups_of_one_run() {
    let inputs = Inputs::new(1);
    let record = |i: usize| {
        json!({"text": "a", "a": i, "b": 0.5, "c": "x", "d": i.is_multiple_of(2), "e": i}).to_string()
    };
    let lines: Vec<String> = (0..30_000).map(record).collect();
    fs::write(inputs.path("fields.jsonl"), lines.join("\n")).unwrap();
    let fields = ["--keep", "text", "a", "b", "c", "d", "e"];
    inputs.run("fields.jsonl", "in.parquet", &fields);
    for format in ["parquet", "arrow"] {
        assert_same(&inputs.merged("in.parquet", format, &fields), &[""]);
    }
}

#[test]
fn merged_chunks_have_the_bytes_of_one_run() {
    let inputs = Inputs::new(60);
    for format in ["jsonl", "csv", "parquet", "arrow", "npy", "safetensors"] {
        let files = inputs.merged("texts.jsonl", format, &["--chunk", "8"]);
        assert_same(
            &files,
            if format == "npy" { &["", ".ledger.jsonl", ".meta.json"] } else { &["", ".ledger.jsonl"] },
        );
    }
}

#[test]
fn other_rows_are_merged_too() {
    let inputs = Inputs::new(60);
    for format in ["jsonl", "parquet", "arrow"] {
        for extra in [
            &["--pooling", "none"][..],
            &["--output-dtype", "binary", "--dimensions", "16"],
            &["--output-dtype", "f16"],
        ] {
            assert_same(&inputs.merged("texts.jsonl", format, extra), &[""]);
        }
    }
}

#[test]
fn labels_and_sparse_vectors_are_merged() {
    let inputs = Inputs::new(40);
    for (task, model, formats) in [
        ("classify", "heads/bert", &["jsonl", "csv", "parquet", "arrow"][..]),
        ("embed", "sparse/bert-max", &["jsonl", "csv", "parquet", "arrow", "npz"][..]),
    ] {
        for format in formats {
            let run = |output: &str, args: &[&str]| {
                let mut command = sconce();
                command.arg(task).arg("-m").arg(fixture(model)).arg("-i").arg(inputs.path("texts.jsonl"));
                command.arg("-o").arg(inputs.path(output)).args(["-q", "--on-error", "skip"]).args(args);
                let run = command.output().unwrap();
                assert_eq!(run.status.code(), Some(3), "{task} {}", stderr(&run));
            };
            let [whole, a, b, merged] =
                ["whole", "a", "b", "merged"].map(|name| format!("{task}-{name}.{format}"));
            run(&whole, &[]);
            run(&a, &["--shard", "1/2"]);
            run(&b, &["--shard", "2/2"]);
            let run = inputs.merge(&merged, &[&a, &b]);
            assert!(run.status.success(), "{}", stderr(&run));
            assert_same(&[inputs.path(&whole), inputs.path(&merged)], &[""]);
        }
    }
}

#[test]
fn rows_of_several_outputs_are_merged() {
    let inputs = Inputs::new(40);
    for format in ["jsonl", "parquet", "arrow"] {
        for (outputs, dtype) in
            [("dense,lexical,multi-vector", "f16"), ("dense,lexical", "f16"), ("lexical,multi-vector", "f32")]
        {
            let run = |output: &str, args: &[&str]| {
                let mut command = sconce();
                command.arg("embed").arg("-m").arg(fixture("unified/m3")).arg("-i");
                command.arg(inputs.path("texts.jsonl")).arg("-o").arg(inputs.path(output));
                command.args(["-q", "--on-error", "skip", "--outputs", outputs, "--output-dtype", dtype]);
                let run = command.args(["--keep", "year"]).args(args).output().unwrap();
                assert_eq!(run.status.code(), Some(3), "{}", stderr(&run));
            };
            let [whole, a, b, merged] =
                ["whole", "a", "b", "merged"].map(|name| format!("{outputs}-{name}.{format}"));
            run(&whole, &[]);
            run(&a, &["--shard", "1/2"]);
            run(&b, &["--shard", "2/2"]);
            let merge = inputs.merge(&merged, &[&a, &b]);
            assert!(merge.status.success(), "{format} {outputs}: {}", stderr(&merge));
            assert_same(&[inputs.path(&whole), inputs.path(&merged)], &[""]);
        }
    }
}

/// Metadata of any length is in the header of a safetensors file, and shards have a header of the size that
/// one run has.
#[test]
fn a_long_prompt_is_in_safetensors_files() {
    let inputs = Inputs::new(30);
    for length in [500, 3_000, 5_000] {
        let prompt = "p".repeat(length);
        for chunk in [&[][..], &["--chunk", "20"]] {
            let args = [&["--prompt", &prompt, "--max-length", "24"][..], chunk].concat();
            // A prompt over the token limit leaves no room for texts.
            let files = inputs.merged("texts.jsonl", "safetensors", &args);
            assert_same(&files, &[""]);
            let bytes = fs::read(&files[0]).unwrap();
            let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            assert_eq!(header == 4088, length < 3_000);
            let header: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
            assert_eq!(header["__metadata__"]["prompt"], prompt);
            assert!(header["__metadata__"]["weights_sha256"].is_string());
        }
    }
}

/// Of shards of an input that has changed in between, each number occurs once, but some records do twice or
/// not at all.
#[test]
fn shards_of_different_inputs_are_refused_in_every_format() {
    let (small, large) = (Inputs::new(30), Inputs::new(39));
    for format in ["jsonl", "csv", "parquet", "arrow", "npy", "safetensors", "npz"] {
        let model = fixture(if format == "npz" { "sparse/bert-max" } else { "bert-tiny" });
        let shard = |inputs: &Inputs, number: usize| {
            let path = small.path(&format!("{number}.{format}"));
            let mut command = sconce();
            command.arg("embed").arg("-m").arg(&model).arg("-i").arg(inputs.path("texts.jsonl")).arg("-o");
            command.arg(&path).args(["-q", "--on-error", "skip", "--shard", &format!("{number}/3")]);
            let run = command.output().unwrap();
            assert!(matches!(run.status.code(), Some(0 | 3)), "{}", stderr(&run));
        };
        let parts = [1, 2, 3].map(|number| format!("{number}.{format}"));
        let parts = parts.each_ref().map(String::as_str);
        for (inputs, message) in [
            ([&small, &large, &large], "starts at record 13, but the shard before it ends at record 10"),
            ([&small, &small, &large], "starts at record 26, but the shard before it ends at record 20"),
        ] {
            inputs.iter().zip(1..).for_each(|(inputs, number)| shard(inputs, number));
            let merged = small.merge("merged", &parts);
            assert_fails(&merged, 1, &[message, "write all shards again from the same input"]);
            assert!(!small.path("merged").exists());
        }
        (1..=3).for_each(|number| shard(&large, number));
        let merged = small.merge("merged", &parts);
        assert!(merged.status.success(), "{format}: {}", stderr(&merged));
        fs::remove_file(small.path("merged")).unwrap();
    }
}

/// Files that do not say what shard they are: the record of the run does, unless it was not copied.
#[test]
fn shards_without_the_records_of_their_runs_are_merged_with_a_warning() {
    let inputs = Inputs::new(12);
    inputs.run("texts.jsonl", "whole.jsonl", &[]);
    let parts = ["1.jsonl", "2.jsonl"];
    parts
        .iter()
        .zip(1..)
        .for_each(|(part, i)| inputs.run("texts.jsonl", part, &["--shard", &format!("{i}/2")]));
    let unchecked = "is not checked";
    let merged = inputs.merge("merged.jsonl", &parts);
    assert!(merged.status.success() && !stderr(&merged).contains(unchecked), "{}", stderr(&merged));
    let merged = inputs.merge("merged.jsonl", &["whole.jsonl", "whole.jsonl"]);
    assert!(merged.status.success() && !stderr(&merged).contains(unchecked), "{}", stderr(&merged));
    fs::remove_file(inputs.path(".2.jsonl.done.json")).unwrap();
    let message = "2.jsonl has no record of its run beside it, which says what shard it is";
    assert_fails(&inputs.merge("merged.jsonl", &parts), 1, &[message, "copy its .NAME.done.json, too"]);
    fs::remove_file(inputs.path(".1.jsonl.done.json")).unwrap();
    let merged = inputs.merge("merged.jsonl", &parts);
    let message = "1.jsonl and 1 file more without the record of the run (.NAME.done.json beside the file): whether these are \
                   all shards of one input, in order, is not checked";
    assert!(merged.status.success() && stderr(&merged).contains(message), "{}", stderr(&merged));
}

#[test]
fn shards_that_are_empty_or_cut_are_named() {
    let inputs = Inputs::new(12);
    for format in ["jsonl", "csv", "parquet"] {
        let parts = ["1", "2"].map(|part| format!("{part}.{format}"));
        let parts = parts.each_ref().map(String::as_str);
        for (part, i) in parts.iter().zip(1..) {
            inputs.run("texts.jsonl", part, &["--shard", &format!("{i}/2")]);
        }
        let file = fs::File::options().write(true).open(inputs.path(parts[1])).unwrap();
        if format != "parquet" {
            file.set_len(file.metadata().unwrap().len() - 5).unwrap();
            let message = format!("{} is truncated: it has ", parts[1]);
            let message = [&*message, "when it was written; write or copy it again"];
            assert_fails(&inputs.merge("merged", &parts), 1, &message);
        }
        file.set_len(0).unwrap();
        let merge = || inputs.merge("merged", &parts);
        let message = format!("{} is truncated: it has 0 bytes", parts[1]);
        assert_fails(&merge(), 1, &[&message, "write or copy it again"]);
        if format != "jsonl" {
            fs::remove_file(inputs.path(&format!(".{}.done.json", parts[1]))).unwrap();
            let message = format!("{} is empty (0 bytes)", parts[1]);
            assert_fails(&merge(), 1, &[&message, "write or copy it again"]);
        }
    }
}

/// The metadata beside an npy file has a checksum.
#[test]
fn npy_metadata_that_was_changed_is_refused() {
    let inputs = Inputs::new(20);
    inputs.run("texts.jsonl", "a.npy", &[]);
    let path = inputs.path("a.npy.meta.json");
    let meta = fs::read_to_string(&path).unwrap();
    let changed = meta.replace("\"mean\"", "\"cls\"");
    assert_ne!(changed, meta);
    fs::write(&path, &changed).unwrap();
    let parts = ["a.npy.meta.json", "its checksum does not match", "restore it, or remove it"];
    assert_fails(&inputs.merge("b.npy", &["a.npy", "a.npy"]), 1, &parts);
    let pairs = || sconce().args(["pairs", "--threshold", "0.5"]).arg(inputs.path("a.npy")).output().unwrap();
    assert_fails(&pairs(), 1, &parts);
    // Other software writes no checksum.
    let mut fields: serde_json::Map<String, Value> = serde_json::from_str(&changed).unwrap();
    fields.remove("checksum");
    fs::write(&path, serde_json::to_string(&fields).unwrap()).unwrap();
    let found = pairs();
    assert!(found.status.success(), "{}", stderr(&found));
    assert!(inputs.merge("b.npy", &["a.npy", "a.npy"]).status.success());
}

/// Damage that makes the readers of the `parquet` and `arrow` crates overflow the stack, take any memory, or
/// panic.
#[cfg(unix)]
#[test]
fn damaged_files_are_refused_by_merge_and_append() {
    let inputs = Inputs::new(20);
    inputs.run("texts.jsonl", "a.arrow", &["--append"]);
    let arrow = fs::read(inputs.path("a.arrow")).unwrap();
    let end = arrow.len();
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = arrow.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let mut cases: Vec<(&str, Vec<u8>, &str)> = malformed_parquet()
        .into_iter()
        .filter(|(bytes, _)| bytes.starts_with(b"PAR1"))
        .map(|(bytes, why)| ("damaged.parquet", bytes, why))
        .collect();
    cases.extend([
        (
            "damaged.arrow",
            with(end - 10, &i32::MAX.to_le_bytes()),
            "its footer has a length of 2147483647 bytes",
        ),
        ("damaged.arrow", arrow[..end - 20].to_vec(), "it does not end with a footer"),
        ("damaged.arrow", [&[0xff; 4][..], &i32::MAX.to_le_bytes(), &[0; 20]].concat(), "it is truncated"),
        ("damaged.arrow", with(end - 40, &[0xff; 24]), "its footer is malformed"),
    ]);
    for (name, bytes, why) in cases {
        fs::write(inputs.path(name), &bytes).unwrap();
        let limited = |args: &[&str]| {
            let mut command = Command::new("bash");
            command.args(["-c", "ulimit -v 1500000; exec \"$@\"", "-", env!("CARGO_BIN_EXE_sconce")]);
            command.env("HF_HUB_OFFLINE", "1").args(args).output().unwrap()
        };
        let [path, merged, texts] = [name, "merged", "texts.jsonl"].map(|name| inputs.path(name));
        let [path, merged, texts] = [&path, &merged, &texts].map(|path| path.to_str().unwrap());
        assert_fails(&limited(&["merge", merged, path, path]), 1, &[name, why, "write or copy it again"]);
        let model = fixture("bert-tiny");
        let append =
            ["embed", "--threads", "2", "-m", model.to_str().unwrap(), "-i", texts, "--append", "-o", path];
        assert_fails(&limited(&append), 1, &[name, why, "write or copy it again"]);
        assert!(fs::read(inputs.path(name)).unwrap() == bytes, "the file is as it was");
    }
}

#[test]
fn shards_are_of_the_records_of_all_files() {
    let inputs = Inputs::new(10);
    let docs = inputs.path("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("a.txt"), "one\ntwo\nthree").unwrap();
    fs::write(docs.join("b.csv"), "text,note\n\"four\nlines\",x\nfive,\"y\nz\"\n").unwrap();
    fs::write(docs.join("c.jsonl"), "{\"text\":\"six\"}\n").unwrap();
    assert_same(&inputs.merged("docs", "jsonl", &["--keep", "file", "line", "--include", "*"]), &[""]);
    assert_same(&inputs.merged("docs", "parquet", &["--input-format", "files"]), &[""]);
    let rows = fs::read_to_string(inputs.path("part-2.jsonl")).unwrap();
    let indices: Vec<Value> =
        rows.lines().map(|row| serde_json::from_str::<Value>(row).unwrap()["index"].clone()).collect();
    assert_eq!(indices, [2, 3]);
}

#[test]
fn a_shard_may_be_empty() {
    let inputs = Inputs::new(2);
    for format in ["jsonl", "csv", "parquet", "arrow", "npy", "safetensors"] {
        assert_same(&inputs.merged("texts.jsonl", format, &[]), &[""]);
    }
}

#[test]
fn a_killed_shard_is_resumed() {
    let inputs = Inputs::new(120_000);
    let args = ["--batch-tokens", "256", "--shard", "2/2"];
    inputs.run("texts.jsonl", "whole.jsonl", &args);
    kill_after_first_save(
        &mut inputs.command("texts.jsonl", "killed.jsonl", &args),
        &inputs.path("killed.jsonl"),
    );
    let mut other = inputs.command(
        "texts.jsonl",
        "killed.jsonl",
        &["--resume", "--batch-tokens", "256", "--shard", "1/2"],
    );
    let other = other.output().unwrap();
    assert_fails(&other, 2, &["--resume: --shard has changed since that run, from 2/2 to 1/2"]);
    let resumed =
        inputs.command("texts.jsonl", "killed.jsonl", &[&args[..], &["--resume"]].concat()).output().unwrap();
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
    assert_same(&["whole.jsonl", "killed.jsonl"].map(|name| inputs.path(name)), &["", ".ledger.jsonl"]);
}

#[test]
fn a_shard_that_cannot_be_is_refused() {
    let inputs = Inputs::new(3);
    for (shard, message) in [
        ("0/4", "shards are numbered from 1; pass 1/4 to 4/4"),
        ("5/4", "shards are numbered from 1; pass 1/4 to 4/4"),
        ("1/0", "there is no shard of 0"),
        ("half", "expected a number and a count, for example 2/4"),
    ] {
        let run = inputs.command("texts.jsonl", "x.jsonl", &["--shard", shard]).output().unwrap();
        assert_eq!(run.status.code(), Some(2));
        assert!(stderr(&run).contains(message), "{}", stderr(&run));
    }
    let stdin =
        sconce().arg("embed").arg("-m").arg(fixture("bert-tiny")).args(["--shard", "1/2"]).output().unwrap();
    assert_fails(&stdin, 2, &["--shard reads its input twice", "pass --input FILE"]);
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let inputs = Inputs::new(30);
    inputs.merged("texts.jsonl", "parquet", &[]);
    inputs.merged("texts.jsonl", "jsonl", &[]);
    let refused = |parts: &[&str], messages: &[&str]| {
        let output = inputs.path("refused");
        assert_fails(&inputs.merge("refused", parts), 1, messages);
        assert!(!output.exists());
    };
    for format in ["parquet", "jsonl"] {
        let [a, b, c] = [1, 2, 3].map(|i| format!("part-{i}.{format}"));
        refused(&[&b, &a, &c], &["is shard 2/3, but is file 1 of 3"]);
        refused(&[&a, &b], &["shard 3/3 is missing; pass all shards of a run in order"]);
        refused(&[&a, &a, &c], &["shard 2/3 is missing"]);
        refused(&[&a, &b, &format!("whole.{format}")], &["whole", "is not a shard, but other files are"]);
    }
    let named = ["1-of-3.jsonl", "3-of-3.jsonl"];
    for shard in ["1/3", "3/3"] {
        inputs.run("texts.jsonl", "{shard}.jsonl", &["--shard", shard]);
    }
    refused(&named, &["2-of-3.jsonl, shard 2/3, is missing; pass all shards of a run in order"]);
    refused(&["part-1.parquet", "part-2.jsonl"], &["parquet", "jsonl", "merge files of one format"]);
    inputs.run("texts.jsonl", "cls.parquet", &["--pooling", "cls"]);
    refused(&["whole.parquet", "cls.parquet"], &["differ in pooling: \"mean\" and \"cls\""]);
    inputs.run("texts.jsonl", "kept.csv", &["--keep", "year"]);
    inputs.run("texts.jsonl", "plain.csv", &[]);
    refused(&["kept.csv", "plain.csv"], &["plain.csv has other columns than", "kept.csv"]);
    let cut = fs::read(inputs.path("whole.jsonl")).unwrap();
    fs::write(inputs.path("cut.jsonl"), &cut[..cut.len() - 5]).unwrap();
    refused(&["cut.jsonl", "whole.jsonl"], &["cut.jsonl ends in the middle of a row"]);
    refused(&["texts.jsonl", "none.jsonl"], &["none.jsonl", "check the path"]);
}

/// The output has the format of the files, so its name may not say another one.
#[test]
fn an_output_with_the_name_of_another_format_is_refused() {
    let inputs = Inputs::new(20);
    let [whole, _] = inputs.merged("texts.jsonl", "parquet", &[]);
    let parts = ["part-1.parquet", "part-2.parquet", "part-3.parquet"];
    for name in ["m.jsonl", "m.arrow"] {
        let message = format!("{name} has the name of a {} file", &name[2..]);
        let messages = [&*message, "the files to merge are parquet", "m.parquet"];
        assert_fails(&inputs.merge(name, &parts), 1, &messages);
        assert!(!inputs.path(name).exists());
    }
    for name in ["m.PQ", "m.part"] {
        assert!(inputs.merge(name, &parts).status.success(), "{name}");
        assert_same(&[whole.clone(), inputs.path(name)], &[""]);
    }
}

#[test]
fn files_to_merge_may_be_a_pattern() {
    let inputs = Inputs::new(20);
    let [whole, _] = inputs.merged("texts.jsonl", "parquet", &[]);
    assert!(inputs.merge("m.parquet", &["part-*.parquet"]).status.success());
    assert_same(&[whole, inputs.path("m.parquet")], &[""]);
    let none = inputs.merge("n.parquet", &["none-*.parquet"]);
    assert_fails(&none, 1, &["none-*.parquet matches no file; check the glob"]);
}

#[test]
fn files_that_are_no_shards_are_merged_in_order() {
    let inputs = Inputs::new(20);
    inputs.run("texts.jsonl", "a.npy", &[]);
    inputs.run("texts.jsonl", "b.npy", &["--limit", "4"]);
    assert!(inputs.merge("ab.npy", &["a.npy", "b.npy"]).status.success());
    let [a, b, ab] = ["a.npy", "b.npy", "ab.npy"].map(|name| fs::read(inputs.path(name)).unwrap());
    assert_eq!(ab[128..], [&a[128..], &b[128..]].concat());
}
