//! Tokenizers from a `tokenizer.json` and the files next to it, from a `vocab.txt`, and from a `vocab.json`
//! with `merges.txt`: the token ids are those of `AutoTokenizer` of transformers, and unusable files are
//! errors that name the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{assert_fails, embed, embedding, fixture, rows, sconce};
use sconce::text::{PairTruncation, Tokenizer, TokenizerOptions, TruncationSide};
use serde_json::{Value, json};
use tempfile::TempDir;

const OPTIONS: TokenizerOptions = TokenizerOptions {
    max_length: usize::MAX,
    truncation_side: TruncationSide::Right,
    pair_truncation: PairTruncation::LongestFirst,
    lowercase: false,
};

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a fixture")).expect("JSON")
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// The file of a tokenizer in a folder.
fn vocabulary(folder: &Path) -> PathBuf {
    let files = ["tokenizer.json", "vocab.txt", "vocab.json"].map(|name| folder.join(name));
    files.into_iter().find(|file| file.exists()).expect("a vocabulary")
}

#[test]
fn ids_and_token_type_ids_are_those_of_transformers() {
    let texts = read_json(&fixture("tokenizers/texts.json"));
    let texts = texts.as_array().expect("a list");
    let mut models = 0;
    for entry in fs::read_dir(fixture("tokenizers")).expect("fixtures") {
        let folder = entry.expect("an entry").path();
        if !folder.is_dir() {
            continue;
        }
        let tokenizer = Tokenizer::read(&vocabulary(&folder), &OPTIONS).expect("a tokenizer");
        let goldens = read_json(&folder.join("goldens.json"));
        let goldens = goldens.as_array().expect("a list");
        assert_eq!(goldens.len(), texts.len());
        for (row, golden) in texts.iter().zip(goldens) {
            let found = tokenizer
                .encode(row["text"].as_str().expect("a text"), row["pair"].as_str())
                .expect("tokens");
            let tokens = |ids: &[u32]| ids.iter().map(|&id| tokenizer.token(id)).collect::<Vec<_>>();
            let expected = ids(&golden["ids"]);
            let name = folder.display();
            assert_eq!(
                found.ids,
                expected,
                "{name}, {row}: {:?}, {:?}",
                tokens(&found.ids),
                tokens(&expected)
            );
            assert_eq!(found.token_type_ids, ids(&golden["type_ids"]), "{name}, {row}");
            assert_eq!(found.truncated_tokens, 0);
        }
        models += 1;
    }
    assert!(models >= 64, "{models} tokenizers");
}

#[test]
fn decoded_tokens_are_those_of_transformers() {
    let decoded = read_json(&fixture("tokenizers/decoded.json"));
    let decoded = decoded.as_object().expect("an object");
    assert_eq!(decoded.len(), 16);
    for (name, texts) in decoded {
        let folder = fixture("tokenizers").join(name);
        let tokenizer = Tokenizer::read(&vocabulary(&folder), &OPTIONS).expect("a tokenizer");
        let texts = texts.as_array().expect("a list");
        assert_eq!(tokenizer.vocab_size(), texts.len(), "{name}");
        for (id, text) in (0..).zip(texts) {
            assert_eq!(&tokenizer.decode(id), text, "{name}, {id}: {:?}", tokenizer.token(id));
        }
    }
}

const REMEDY: &str = "transformers (AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT))";
const TEXT: &str = "A lamp, the Wick!";

/// A directory with a copy of a tokenizer, or of a model, whose files a test changes.
struct Folder(TempDir);

impl Folder {
    fn of(name: &str) -> Self {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        for entry in fs::read_dir(fixture(name)).expect("a fixture") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                fs::copy(&path, folder.path(path.file_name().unwrap().to_str().unwrap())).expect("a copy");
            }
        }
        folder
    }

    /// The tiny BERT with a `vocab.txt` in place of its `tokenizer.json`, as older releases of transformers
    /// saved it.
    fn model() -> Self {
        let folder = Folder::of("bert-tiny");
        fs::remove_file(folder.path("modules.json")).expect("a file");
        let tokenizer = read_json(&folder.path("tokenizer.json"));
        let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
        let mut tokens: Vec<_> = vocabulary.iter().map(|(token, id)| (id.as_u64(), token.as_str())).collect();
        tokens.sort_unstable();
        let lines: Vec<&str> = tokens.into_iter().map(|(_, token)| token).collect();
        fs::remove_file(folder.path("tokenizer.json")).expect("a file");
        folder.with("vocab.txt", lines.join("\n"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn with(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        fs::write(self.path(name), content).expect("a file");
        self
    }

    /// With these fields in `tokenizer_config.json`.
    fn with_config(self, fields: Value) -> Self {
        self.with("tokenizer_config.json", fields.to_string())
    }

    /// `sconce embed` with a file of this directory as the tokenizer of the tiny BERT.
    fn embed(&self, name: &str) -> Output {
        embed("bert-tiny", ["--tokenizer".as_ref(), self.path(name).as_os_str(), TEXT.as_ref()])
    }

    /// `sconce embed` with this directory as its model.
    fn run(&self) -> Output {
        let mut command = sconce();
        command.args(["embed", "--pooling", "mean", "--normalize", TEXT, "--model"]).arg(self.0.path());
        command.output().expect("sconce starts")
    }
}

#[test]
fn a_vocab_txt_gives_the_same_vectors_as_a_tokenizer_json() {
    let expected = embedding(&rows(&embed("bert-tiny", [TEXT]))[0]);
    let folder = Folder::model();
    assert_eq!(embedding(&rows(&folder.run())[0]), expected);
    assert_eq!(embedding(&rows(&folder.embed("vocab.txt"))[0]), expected);
    // A tokenizer.json has precedence.
    let tokenizer = fs::read(fixture("bert-tiny").join("tokenizer.json")).expect("a fixture");
    let folder = folder.with("vocab.txt", "").with("tokenizer.json", tokenizer);
    assert_eq!(embedding(&rows(&folder.run())[0]), expected);
}

/// In a directory with several tokenizers, the names of the files have a prefix.
#[test]
fn the_name_of_a_vocabulary_may_have_a_prefix() {
    let folder = Folder::of("tokenizers/roberta");
    for name in ["vocab.json", "merges.txt"] {
        fs::rename(folder.path(name), folder.path(&format!("mine-{name}"))).expect("a file");
    }
    let tokenizer = Tokenizer::read(&folder.path("mine-vocab.json"), &OPTIONS).expect("a tokenizer");
    let golden = read_json(&fixture("tokenizers/roberta/goldens.json"));
    assert_eq!(tokenizer.encode("the lamp burns", None).expect("tokens").ids, ids(&golden[0]["ids"]));
}

/// `do_lower_case` of sentence-transformers: texts are lowercased before the tokenizer's own normalizer.
#[test]
fn texts_are_lowercased_if_the_options_say_so() {
    let file = fixture("tokenizers/bert-cased/vocab.txt");
    let lower = TokenizerOptions { lowercase: true, ..OPTIONS };
    let ids = |options, text| Tokenizer::read(&file, options).unwrap().encode(text, None).unwrap().ids;
    assert_ne!(ids(&OPTIONS, "the LAMP"), ids(&OPTIONS, "the lamp"));
    assert_eq!(ids(&lower, "the LAMP"), ids(&OPTIONS, "the lamp"));
}

#[test]
fn an_unusable_vocab_txt_is_an_error() {
    let bert = || Folder::of("tokenizers/bert-cased");
    let fails = |folder: Folder, parts: &[&str]| assert_fails(&folder.embed("vocab.txt"), 1, parts);
    for empty in ["", "\n\n"] {
        fails(bert().with("vocab.txt", empty), &["vocab.txt is empty", "download the model again"]);
    }
    fails(bert().with("vocab.txt", b"[UNK]\n\xff\n"), &["vocab.txt is not UTF-8"]);
    let vocabulary = fs::read_to_string(bert().path("vocab.txt")).expect("a fixture");
    for (token, name) in [("[UNK]", "unk_token"), ("[CLS]", "cls_token"), ("[SEP]", "sep_token")] {
        let lacking = vocabulary.replace(token, "[other]");
        fails(
            bert().with("vocab.txt", lacking),
            &["vocab.txt has no token", token, name, "download the model again"],
        );
        fails(bert().with_config(json!({ name: null })), &["vocab.txt", "needs a", name, "set it to null"]);
    }
    let gone = bert();
    fs::remove_file(gone.path("vocab.txt")).expect("a file");
    fails(gone, &["cannot read", "vocab.txt"]);
}

#[test]
fn malformed_files_next_to_a_vocabulary_are_errors() {
    let bert = || Folder::of("tokenizers/bert-cased");
    let fails = |folder: Folder, parts: &[&str]| assert_fails(&folder.embed("vocab.txt"), 1, parts);
    for name in ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"] {
        fails(bert().with(name, "{"), &[name, "is not valid JSON", "download it again"]);
        fails(bert().with(name, "[]"), &[name, "does not hold a JSON object"]);
    }
    for (key, value) in [
        ("do_lower_case", json!("yes")),
        ("do_lower_case", json!(null)),
        ("tokenize_chinese_chars", json!(1)),
        ("strip_accents", json!("no")),
        ("split_special_tokens", json!([])),
        ("mask_token", json!(5)),
        ("cls_token", json!({"lstrip": true})),
        ("own_token", json!({"lstrip": true})),
        ("additional_special_tokens", json!([1])),
        ("added_tokens_decoder", json!({"x": "[NEW]"})),
        ("added_tokens_decoder", json!([])),
    ] {
        fails(bert().with_config(json!({ key: value })), &["tokenizer_config.json", key, "fix the file"]);
    }
    fails(
        bert().with("special_tokens_map.json", r#"{"pad_token": []}"#),
        &["special_tokens_map.json", "pad_token"],
    );
    fails(bert().with("added_tokens.json", r#"{"[NEW]": "9"}"#), &["added_tokens.json", "tokens to ids"]);
    // A special token that the template of the library cannot contain.
    let vocabulary = fs::read_to_string(bert().path("vocab.txt")).expect("a fixture");
    let named = bert()
        .with("vocab.txt", vocabulary.replace("[CLS]", "a:b:c"))
        .with_config(json!({"cls_token": "a:b:c"}));
    fails(named, &["cannot build a tokenizer from", "vocab.txt", "download the model again"]);
}

#[test]
fn unsupported_tokenizer_classes_are_errors_that_name_the_class() {
    let refused = |folder: Folder, file: &str, class: &str| {
        assert_fails(&folder.embed(file), 1, &["cannot build a", class, file, REMEDY]);
    };
    for class in ["RoFormerTokenizer", "BertJapaneseTokenizer", "RobertaTokenizer"] {
        let folder = Folder::of("tokenizers/bert-plain").with_config(json!({"tokenizer_class": class}));
        refused(folder, "vocab.txt", class);
        let config = json!({"model_type": "roberta", "tokenizer_class": format!("{class}Fast")});
        let folder = Folder::of("tokenizers/bert-plain").with("config.json", config.to_string());
        refused(folder, "vocab.txt", class);
    }
    for class in ["CTRLTokenizer", "MPNetTokenizer"] {
        let folder = Folder::of("tokenizers/roberta-plain").with_config(json!({"tokenizer_class": class}));
        refused(folder, "vocab.json", class);
    }
    let folder = Folder::of("tokenizers/bert-plain").with("config.json", r#"{"model_type": "roformer"}"#);
    refused(folder, "vocab.txt", "RoFormerTokenizer");
}

#[test]
fn an_unusable_vocab_json_or_merges_txt_is_an_error() {
    let roberta = || Folder::of("tokenizers/roberta");
    let fails = |folder: Folder, parts: &[&str]| assert_fails(&folder.embed("vocab.json"), 1, parts);
    for content in ["", "[]", "{\"a\": \"b\"}", "{\"a\": -1}", "{\"a\": 4294967296}", "{\"a\": 1"] {
        let parts = ["vocab.json", "does not map tokens to ids", "fix the file"];
        fails(roberta().with("vocab.json", content), &parts);
    }
    // A part or the result of the merge is not in the vocabulary; the last result is longer than any token.
    for line in ["la", "l a mp", "", " ", "l zz", "la ic", "burns burns"] {
        let merges = format!("#version: 0.2\nl a\n{line}\nm p\n");
        fails(
            roberta().with("merges.txt", merges),
            &["merges.txt, line 3", "use the files of one tokenizer"],
        );
    }
    fails(roberta().with("merges.txt", b"\xff"), &["merges.txt is not UTF-8"]);
    fails(
        roberta().with("vocab.json", "{}").with("merges.txt", ""),
        &["vocab.json has no token", "<s>", "cls_token"],
    );
    let gone = roberta();
    fs::remove_file(gone.path("merges.txt")).expect("a file");
    fails(gone, &["cannot read", "merges.txt"]);
}

#[test]
fn a_model_without_a_tokenizer_is_an_error_that_names_the_usable_files() {
    let folder = Folder::model();
    fs::remove_file(folder.path("vocab.txt")).expect("a file");
    let parts = ["has no tokenizer.json", "vocab.txt", "vocab.json with merges.txt", "--tokenizer FILE"];
    assert_fails(&folder.run(), 1, &parts);
    let folder = folder.with("vocab.json", "{}");
    assert_fails(&folder.run(), 1, &parts);
    for name in ["sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"] {
        let folder = Folder::model().with(name, "pieces");
        rows(&folder.run());
        fs::remove_file(folder.path("vocab.txt")).expect("a file");
        assert_fails(&folder.run(), 1, &[name, "SentencePiece", REMEDY]);
        assert_fails(&folder.embed(name), 1, &[name, "SentencePiece", REMEDY]);
    }
}
