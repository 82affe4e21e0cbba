//! Tokenizers from a `tokenizer.json` and the files next to it, from a `vocab.txt`, from a `vocab.json` with
//! `merges.txt`, and from a SentencePiece model: the token ids are those of `AutoTokenizer` of transformers,
//! and unusable files are errors that name the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::fuzz_targets::check_sentence;
use crate::support::{assert_fails, embed, embedding, fixture, rows, sconce};
use sconce::model::layout::tokenizer_in;
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
        let tokenizer =
            Tokenizer::read(&tokenizer_in(&folder).expect("a vocabulary"), &OPTIONS).expect("a tokenizer");
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
    assert!(models >= 78, "{models} tokenizers");
}

#[test]
fn decoded_tokens_are_those_of_transformers() {
    let decoded = read_json(&fixture("tokenizers/decoded.json"));
    let decoded = decoded.as_object().expect("an object");
    assert_eq!(decoded.len(), 20);
    for (name, texts) in decoded {
        let folder = fixture("tokenizers").join(name);
        let tokenizer =
            Tokenizer::read(&tokenizer_in(&folder).expect("a vocabulary"), &OPTIONS).expect("a tokenizer");
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
}

/// A SentencePiece model is taken where there is no vocabulary in another form.
#[test]
fn a_sentence_piece_model_is_the_last_choice() {
    let albert = fs::read(fixture("tokenizers/spm-albert/spiece.model")).expect("a fixture");
    let config = json!({"tokenizer_class": "AlbertTokenizer"});
    for name in ["spiece.model", "tokenizer.model"] {
        let expected = embedding(&rows(&Folder::model().run())[0]);
        let folder = Folder::model().with(name, &albert);
        assert_eq!(embedding(&rows(&folder.run())[0]), expected);
        fs::remove_file(folder.path("vocab.txt")).expect("a file");
        let folder = folder.with_config(config.clone());
        let by_model = embedding(&rows(&folder.run())[0]);
        assert_ne!(by_model, expected);
        let tokenizer = folder.path(name);
        let by_file = embed("bert-tiny", ["--tokenizer".as_ref(), tokenizer.as_os_str(), TEXT.as_ref()]);
        assert_eq!(embedding(&rows(&by_file)[0]), by_model);
    }
    // The file of every class has precedence, as in transformers.
    let folder = Folder::model().with("spiece.model", "no pieces").with("tokenizer.model", &albert);
    fs::remove_file(folder.path("vocab.txt")).expect("a file");
    rows(&folder.with_config(config).run());
}

/// The error of reading a tokenizer: a sentence that names a file of its folder.
fn refusal(folder: &Folder, file: &str) -> String {
    let error = Tokenizer::read(&folder.path(file), &OPTIONS).map(drop).expect_err("an error");
    let message = format!("{error:#}");
    check_sentence(&message, b"");
    assert!(message.contains(&*folder.0.path().to_string_lossy()), "{message}");
    message
}

#[test]
fn an_unusable_sentence_piece_model_is_an_error() {
    let folder = || Folder::of("tokenizers/spm-xlm-roberta");
    let file = "sentencepiece.bpe.model";
    let intact = fs::read(folder().path(file)).expect("a fixture");
    let with = |rest: &[u8]| [&intact, rest].concat();
    let again = "download it again";
    for (bytes, part, remedy) in [
        (vec![], "it has no pieces", again),
        (b"IQ== 0\nIg== 1\n".to_vec(), "cannot parse", again),
        (intact[..intact.len() - 1].to_vec(), "a field of", again),
        (intact[..100].to_vec(), "a field of", again),
        (with(&[0x0a]), "ends within an integer", again),
        (with(b"\x0a\x05\x0a\x03<s>"), "\"<s>\" again", again),
        (with(&[0x12, 2, 0x18, 3]), "its pieces are words", REMEDY),
        (with(&[0x12, 2, 0x18, 2]), "it is a BPE model", REMEDY),
        (with(&[0x1a, 3, 0x12, 1, 7]), "cannot build a tokenizer", "download the model again"),
    ] {
        let message = refusal(&folder().with(file, bytes), file);
        assert!(message.contains(part) && message.contains(remedy), "{part}: {message}");
    }
    let gone = folder();
    fs::remove_file(gone.path(file)).expect("a file");
    assert!(refusal(&gone, file).contains("cannot read"));
    let null = folder().with_config(json!({"pad_token": null}));
    assert!(refusal(&null, file).contains("XLMRobertaTokenizer needs a pad_token"));
}

/// A class gets only models that it reads as they were trained.
#[test]
fn a_sentence_piece_model_of_another_class_is_an_error() {
    let of_class = |name: &str| json!({"tokenizer_class": name});
    let unk = |class: &str, token: Value| json!({"tokenizer_class": class, "unk_token": token});
    let begun = json!({"tokenizer_class": "AlbertTokenizer", "add_bos_token": true});
    let model = |name: &str| {
        let folder = Folder::of(&format!("tokenizers/{name}"));
        fs::read(tokenizer_in(folder.0.path()).expect("a tokenizer")).expect("a fixture")
    };
    let user_defined = b"\x0a\x10\x0a\x0c<extra_id_3>\x18\x04".to_vec();
    let with_first = [b"\x0a\x04\x0a\x02q8".to_vec(), model("spm-camembert")].concat();
    let with_extra = [model("spm-t5"), user_defined].concat();
    for (bytes, config, part) in [
        (model("spm-albert"), of_class("BertJapaneseTokenizer"), "cannot build a BertJapaneseTokenizer"),
        (model("spm-albert"), of_class("PreTrainedTokenizerFast"), "cannot build a PreTrainedTokenizer"),
        (model("spm-albert"), json!({}), "name no tokenizer_class"),
        (model("spm-albert"), of_class("T5Tokenizer"), "has the id 1, and the class has 2"),
        (model("spm-albert"), of_class("CamembertTokenizer"), "its unknown token has the id 1"),
        (model("spm-deberta-v2"), of_class("XLMRobertaTokenizer"), "its unknown token has the id 3"),
        (with_first, of_class("CamembertTokenizer"), "\"q8\" is among the first 1"),
        (model("spm-llama"), of_class("XLMRobertaTokenizer"), "it is a BPE model"),
        (model("spm-albert"), of_class("GemmaTokenizer"), "it is a Unigram model"),
        (model("spm-gemma"), unk("GemmaTokenizer", json!("<mask>")), "and unk_token is \"<mask>\""),
        (model("spm-gemma"), unk("GemmaTokenizer", json!(null)), "and unk_token is null"),
        (model("spm-deberta-v2"), unk("DebertaV2Tokenizer", json!("<a>")), "the id 3, and the class has 1"),
        (model("spm-albert"), begun, "add_bos_token of tokenizer_config.json"),
        (with_extra.clone(), of_class("T5Tokenizer"), "the piece \"<extra_id_3>\" already"),
    ] {
        let folder = Folder(tempfile::tempdir().expect("a folder")).with("tokenizer.model", bytes);
        let message = refusal(&folder.with_config(config), "tokenizer.model");
        assert!(message.contains(part) && message.contains(REMEDY), "{part}: {message}");
    }
    let without_extra = json!({"tokenizer_class": "T5Tokenizer", "extra_ids": 0});
    let folder = Folder::of("tokenizers/spm-t5").with("spiece.model", with_extra).with_config(without_extra);
    assert!(Tokenizer::read(&folder.path("spiece.model"), &OPTIONS).is_ok());
    let many = Folder::of("tokenizers/spm-t5").with_config(json!({"extra_ids": 1_000_000}));
    assert!(refusal(&many, "spiece.model").contains("\"extra_ids\" is 1000000"));
    let other_name = Folder::of("tokenizers/spm-albert").with_config(of_class("XLMRobertaTokenizer"));
    assert!(refusal(&other_name, "spiece.model").contains("sentencepiece.bpe.model or tokenizer.model"));
}
