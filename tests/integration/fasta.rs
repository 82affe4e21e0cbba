//! Sequences of proteins in FASTA.

use std::fs;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use sconce::input::{Entries, Entry, Fields, Filter, HEADER, find};
use serde_json::{Value, json};

use crate::support::{assert_fails, embed, fixture, rows, stderr};

const PROTEINS: &str = ">sp|P69905|HBA_HUMAN Hemoglobin subunit alpha OS=Homo sapiens
MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTTKTYFPHFDLSH
GSAQVKGHGKKVADALTNAVAHVDDMPNALSALSDLHAHKLRVDPVNFKLL

; a comment
SHCLLVTLAAHLPAEFTPAVHASLDKFLASVSTVLTSKYR
> insulin \t B chain\x20
FVNQHLCGSH LVEALYLVCG
ERGFFYTPKT
>
MKT
>empty
>last";

/// The records of a file as `[line, id, text, header]`, or why one cannot be read.
fn read(path: &Path) -> Vec<Value> {
    let fields = Fields { keep: ["line", HEADER].map(Into::into).into(), ..Fields::default() };
    let found = find(&[path.to_owned()], None, &Filter::default()).unwrap();
    let entry = |entry: anyhow::Result<Entry>| match entry.unwrap() {
        Entry::Record(record) => {
            let kept: Vec<Value> = record.kept.iter().map(|value| value.json().into_owned()).collect();
            json!([kept[0], record.id, record.text, kept[1]])
        }
        Entry::Unreadable(unreadable) => {
            format!("{:?}: {}", unreadable.location.position, unreadable.reason).into()
        }
    };
    Entries::open(found.sources, fields).unwrap().map(entry).collect()
}

#[test]
fn sequences_have_the_ids_and_the_headers_of_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.fasta");
    let alpha = "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTTKTYFPHFDLSHGSAQVKGHGKKVADALTNAVAHVDDMPNALSALSDLHAHKLRVDPVNFKLL\
                 SHCLLVTLAAHLPAEFTPAVHASLDKFLASVSTVLTSKYR";
    let expected = vec![
        json!([
            1,
            "sp|P69905|HBA_HUMAN",
            alpha,
            "sp|P69905|HBA_HUMAN Hemoglobin subunit alpha OS=Homo sapiens"
        ]),
        json!([7, "insulin", "FVNQHLCGSHLVEALYLVCGERGFFYTPKT", "insulin \t B chain"]),
        json!([10, null, "MKT", ""]),
        json!([12, "empty", "", "empty"]),
        json!([13, "last", "", "last"]),
    ];
    for text in [
        PROTEINS.to_owned(),
        format!("{PROTEINS}\n\n"),
        PROTEINS.replace('\n', "\r\n"),
        format!("\n;c\n{PROTEINS}"),
    ] {
        fs::write(&path, &text).unwrap();
        let moved: Vec<Value> = read(&path);
        let without_lines =
            |rows: &[Value]| rows.iter().map(|row| row.as_array().unwrap()[1..].to_vec()).collect::<Vec<_>>();
        assert_eq!(without_lines(&moved), without_lines(&expected));
        if text == PROTEINS {
            assert_eq!(moved, expected);
        }
    }
    for name in ["a.fa.gz", "b.faa.gz", "c.fna.gz"] {
        let path = folder.path().join(name);
        let mut file = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::fast());
        std::io::Write::write_all(&mut file, PROTEINS.as_bytes()).unwrap();
        file.finish().unwrap();
        assert_eq!(read(&path), expected, "{name}");
    }
}

#[test]
fn what_is_no_sequence_is_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.fasta");
    fs::write(&path, b"MKT\nLLA\n>a\nM\xffT\nKT\n>b\nMK\n\xfe\n").unwrap();
    let found = read(&path);
    let texts: Vec<&str> = found.iter().map(|row| row.as_str().unwrap_or("a record")).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(
        texts[0].starts_with("Line(1): is before the first header; begin each sequence with a line >ID"),
        "{texts:?}"
    );
    assert!(
        texts[1].starts_with("Line(3): has a line that cannot be used: ")
            && texts[1].contains("a.fasta line 4 is not valid UTF-8"),
        "{texts:?}"
    );
    assert!(texts[2].contains("line 8"), "{texts:?}");
    fs::write(&path, format!(">long\n{}\n>a\nMKT\n", format!("{}\n", "A".repeat(1 << 20)).repeat(17)))
        .unwrap();
    let found = read(&path);
    assert_eq!(found[0], json!("Line(1): is longer than 16 MiB; split the sequence"));
    assert_eq!(found[1], json!([20, "a", "MKT", "a"]));
}

#[test]
fn vectors_of_sequences_are_those_of_their_letters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proteins.faa");
    fs::write(&path, PROTEINS).unwrap();
    fs::write(folder.path().join("README.md"), "about the proteins").unwrap();
    let input = folder.path().to_str().unwrap();
    let output = embed("esm", ["-i", input, "--keep", "header", "line"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = rows(&output);
    assert_eq!(found.len(), 5, "the texts beside sequences are left out");
    assert_eq!(
        (&found[1]["id"], &found[1]["header"], &found[1]["line"]),
        (&json!("insulin"), &json!("insulin \t B chain"), &json!(7))
    );
    let plain = rows(&embed("esm", ["FVNQHLCGSHLVEALYLVCGERGFFYTPKT"]));
    assert_eq!(found[1]["embedding"], plain[0]["embedding"]);
    let lines = folder.path().join("a.txt");
    fs::write(&lines, "a\n").unwrap();
    let refused = embed("esm", ["-i", lines.to_str().unwrap(), "--keep", "header"]);
    assert_fails(&refused, 2, &["--keep needs an input with fields"]);
}

/// The letters of a protein are tokens, as EsmTokenizer of transformers cuts them.
#[test]
fn tokens_are_those_of_the_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("esm").join(file), folder.path().join(file)).unwrap();
    }
    fs::copy(fixture("tokenizers/esm/vocab.txt"), folder.path().join("vocab.txt")).unwrap();
    let config = folder.path().join("tokenizer_config.json");
    let model = folder.path().to_str().unwrap();
    // Without an end token, as models of nucleotides have it, there is one token less.
    for (fields, tokens) in [
        (json!({"tokenizer_class": "EsmTokenizer"}), 5),
        (json!({"tokenizer_class": "EsmTokenizer", "eos_token": null}), 4),
        (json!({}), 5),
    ] {
        fs::write(&config, fields.to_string()).unwrap();
        let output = crate::support::sconce().args(["embed", "-m", model, "MKT"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(rows(&output)[0]["tokens"], json!(tokens), "{fields}");
    }
}
