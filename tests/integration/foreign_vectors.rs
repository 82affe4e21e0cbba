//! Vector files of NumPy, pandas, polars, pyarrow and safetensors
//! (`scripts/fixtures/make_foreign_vectors.py`): what is read, which field is chosen, and what a refusal
//! says. No sentence supposes that Sconce wrote the file.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use sconce::vectors::{VectorField, VectorFile};
use serde_json::json;

use crate::support::{assert_fails, fixture, rows, sconce, stderr};

/// The vectors of all files.
const VECTORS: [[f32; 4]; 5] = [
    [1.0, -0.5, 0.25, 2.0],
    [0.5, 0.5, -1.0, 0.0],
    [-2.0, 0.125, 0.75, 1.0],
    [0.0, 1.0, 0.5, -0.25],
    [1.5, 1.0, 1.0, 1.0],
];
/// The vectors of the field `other`.
const OTHER: [[f32; 2]; 5] = [[1.5, 1.0], [0.0, 1.0], [-2.0, 0.125], [0.5, 0.5], [1.0, -0.5]];

fn path(name: &str) -> PathBuf {
    fixture("foreign_vectors").join(name)
}

fn field_name(field: VectorField<'_>) -> Option<&str> {
    match field {
        VectorField::Auto => Some("vec"),
        VectorField::Named(name) | VectorField::IfPresent(name) => Some(name),
    }
}

/// All rows of a file, read in blocks and one by one.
fn vectors(name: &str, field: VectorField) -> Vec<f32> {
    let file = VectorFile::open(&path(name), field).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (all, missing) = file.rows_f32(0..file.rows()).unwrap();
    assert!(missing.is_empty());
    let single = (0..file.rows()).flat_map(|row| file.rows_f32(row..row + 1).unwrap().0);
    assert_eq!(single.collect::<Vec<_>>(), all, "{name}");
    let chosen = field_name(field);
    assert!(file.columns().iter().all(|column| Some(&*column.name) != chosen), "{name}");
    all
}

#[test]
fn vectors_of_every_type_and_order_are_read() {
    let files = [
        "f4.npy",
        "fortran_f4.npy",
        "fortran_f8.npy",
        "transposed_f2.npy",
        "little_f8.npy",
        "big_f2.npy",
        "big_f4.npy",
        "big_f8.npy",
        "one.npz",
        "one.safetensors",
        "list_f8.parquet",
        "large_list_f4.parquet",
        "fixed_f4.parquet",
        "fixed_f8.parquet",
        "polars.parquet",
        "list_f2.arrow",
        "list_f8.arrow",
        "large_list_f4.arrow",
        "fixed_f4.arrow",
        "fixed_f8.arrow",
        "list_view_f4.arrow",
        "large_list_view_f8.arrow",
        "list.csv",
        "list.jsonl",
    ];
    for name in files {
        assert_eq!(vectors(name, VectorField::Auto), VECTORS.concat(), "{name}");
    }
    assert_eq!(vectors("one.npy", VectorField::Auto), VECTORS[2]);
}

#[test]
fn the_field_is_chosen_by_name_or_the_error_lists_all() {
    for name in ["two.npz", "two.safetensors", "two.parquet", "two.csv", "two.jsonl"] {
        assert_eq!(vectors(name, VectorField::Named("vec")), VECTORS.concat(), "{name}");
        assert_eq!(vectors(name, VectorField::Named("other")), OTHER.concat(), "{name}");
    }
    assert_eq!(vectors("f4.npy", VectorField::IfPresent("vec")), VECTORS.concat());
    assert_eq!(vectors("list.csv", VectorField::IfPresent("none")), VECTORS.concat());
    let (auto, named) = (VectorField::Auto, VectorField::Named);
    let choose = "choose one with --vector-field NAME";
    let refused: [(&str, VectorField, &[&str]); 15] = [
        ("two.npz", auto, &["no array \"embeddings\"", "vec (<f8 [5, 4]), other (<f4 [5, 2])", choose]),
        ("two.safetensors", auto, &["vec (F64 [5, 4])", "other (F32 [5, 2])", choose]),
        (
            "two.parquet",
            auto,
            &["id (", "(text)", "vec (lists of 32-bit floats)", "other (lists of ", choose],
        ),
        ("two.csv", auto, &["columns: id (text), vec (list of 4), other (list of 2)", choose]),
        ("two.jsonl", auto, &["id (string), vec (list of 4 numbers), other (list of 2 numbers)", choose]),
        (
            "none.parquet",
            auto,
            &["no column \"embedding\" of vectors, nor any other", "n (64-bit integers)", "pass a file"],
        ),
        (
            "two.parquet",
            named("x"),
            &["--vector-field x: ", "no such column", "vec (lists of ", "choose one of these"],
        ),
        ("two.npz", named("x"), &["--vector-field x: ", "no such array", "choose one of these"]),
        (
            "two.parquet",
            named("id"),
            &["\"id\" has the type", "expected lists", "write it as lists of numbers"],
        ),
        ("f4.npy", named("vec"), &["--vector-field vec: ", "one array without a name", "remove the option"]),
        ("one.npz", named("ids"), &["elements of type <i8", ".astype(\"float32\")"]),
        ("integers.npy", auto, &["elements of type <i8", ".astype(\"float32\")"]),
        ("tokens.npy", auto, &["shape (5, 2, 2)", "expected (N, D): one vector per row", "reshape it"]),
        ("compressed.npz", auto, &["is compressed", "numpy.savez"]),
        ("twice.arrow", named("vec"), &["has 2 columns \"vec\"", "rename one of them"]),
    ];
    for (name, field, parts) in refused {
        let error = VectorFile::open_any(&path(name), field).err().expect(name).to_string();
        assert!(error.contains(name) && parts.iter().all(|part| error.contains(part)), "{name}: {error}");
        assert!(!error.contains("embed writes") && !error.contains("sconce embed"), "{error}");
    }
}

#[test]
fn commands_take_the_field() {
    let run = |args: &[&str]| {
        let mut command = sconce();
        command.current_dir(fixture("foreign_vectors")).args(args).args(["--output-format", "jsonl"]);
        command.output().unwrap()
    };
    let search = ["search", "two.parquet", "--query-vectors", "f4.npy", "-k", "1", "--keep", "id"];
    let found = rows(&run(&[&search[..], &["--vector-field", "vec"]].concat()));
    let ids: Vec<_> = found.iter().map(|row| row["id"].clone()).collect();
    assert_eq!(ids, ["a", "b", "c", "d", "e"]);
    assert_fails(&run(&search), 1, &["two.parquet", "other (lists of ", "--vector-field NAME"]);
    assert_fails(
        &run(&[&search[..], &["--vector-field", "x"]].concat()),
        2,
        &["--vector-field x", "two.parquet"],
    );
    // A glob of files in several formats.
    let several = ["search", "f4.npy", "fortran_f8.npy", "list.csv", "--query-vectors", "one.npy", "-k", "3"];
    let found = rows(&run(&several));
    assert!(found.iter().all(|row| row["index"].as_u64().unwrap() % 5 == 2) && found.len() == 3, "{found:?}");
    let pairs = run(&["pairs", "two.csv", "--vector-field", "vec", "--keep", "id", "--max-pairs", "1"]);
    let pairs = rows(&pairs);
    assert_eq!((&pairs[0]["id_a"], &pairs[0]["id_b"]), (&json!("a"), &json!("e")), "{pairs:?}");
    let merged = tempfile::tempdir().unwrap();
    let merged = merged.path().join("merged.npy");
    let merge = |name: &str| {
        let name = path(name);
        sconce().arg("merge").arg(&merged).args([&name, &name]).output().unwrap()
    };
    assert_fails(&merge("little_f8.npy"), 1, &["little_f8.npy has other elements than sconce writes"]);
    let fortran = merge("fortran_f4.npy");
    assert!(fortran.status.success(), "{}", stderr(&fortran));
    let merged = VectorFile::open(&merged, VectorField::Auto).unwrap();
    assert_eq!(merged.rows_f32(0..10).unwrap().0, [VECTORS.concat(), VECTORS.concat()].concat());
}

/// The rows between two stray quotes are not joined.
#[test]
fn a_stray_quote_in_csv_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    for (rows, part) in [
        ("\"b,1,0\nc,0,1\n\"d,1,1\n", "has a quoted field with text after its closing quote"),
        ("\"b,1,0\nc,0,1\n", "has a quoted field that does not end"),
    ] {
        fs::write(&path, format!("id,e0,e1\na,1,1\n{rows}")).unwrap();
        let error = VectorFile::open(&path, VectorField::Auto).err().unwrap().to_string();
        assert!(error.contains("a.csv") && error.contains(part), "{error}");
    }
}

/// The first of two columns of one name is not taken in silence, in any format.
#[test]
fn columns_of_one_name_are_an_error_if_they_are_read() {
    let run = |args: &[&str]| {
        let mut command = sconce();
        command.current_dir(fixture("foreign_vectors")).args(args).output().unwrap()
    };
    let model = fixture("bert-tiny");
    let embed = |args: &[&str]| run(&[&["embed", "-q", "-m", model.to_str().unwrap()], args].concat());
    let message =
        "the schema has 2 columns \"text\"; rename one of them, or choose another with --text-field";
    assert_fails(&embed(&["-i", "texts.parquet"]), 1, &["texts.parquet", message]);
    let message = "the schema has 2 columns \"n\"; rename one of them, or choose another with --keep";
    assert_fails(
        &embed(&["-i", "shown_twice.arrow", "--text-field", "n"]),
        1,
        &["2 columns \"n\"", "--text-field"],
    );
    let kept = embed(&["-i", "twice.arrow", "--text-field", "id", "--keep", "vec"]);
    assert_fails(&kept, 1, &[&message.replace("\"n\"", "\"vec\"")]);
    assert_eq!(rows(&embed(&["-i", "twice.arrow", "--text-field", "id"])).len(), 5);
    let message = "shown_twice.arrow has 2 columns \"n\"; rename one of them, or choose another with --keep";
    let search = ["search", "shown_twice.arrow", "--query-vectors", "one.npy", "--output-format", "jsonl"];
    assert_fails(&run(&search), 1, &[message]);
    assert_fails(&run(&["pairs", "shown_twice.arrow", "--keep", "n"]), 1, &[message]);
    assert_eq!(rows(&run(&["pairs", "shown_twice.arrow", "--output-format", "jsonl"])).len(), 10);
}

/// A header that declares vectors of millions of elements, in a file that has them as holes.
#[test]
fn absurd_widths_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, start: &[u8], size: u64| {
        let path = folder.path().join(name);
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(start).unwrap();
        file.set_len(size).unwrap();
        path
    };
    let npy = |shape: &str| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        let length = [header.len() as u8, 0];
        [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes()].concat()
    };
    let safetensors = |shape: &str, bytes: u64| {
        let header =
            format!("{{\"x\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,{bytes}]}}}}");
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    };
    let jsonl = format!("{{\"embedding\":[{}0.5]}}\n", "0,".repeat(1 << 20));
    let csv = format!("id,embedding\n1,\"[{}0.5]\"\n", "0,".repeat(1 << 20));
    let wide = "more than 1048576; check that its rows are vectors";
    let cases = [
        (file("a.npy", &npy("(1, 2147483648)"), 9 << 30), wide),
        (file("b.npy", &npy("(2147483648,)"), 9 << 30), wide),
        (file("c.npy", &npy("(4294967296, 4294967296)"), 9 << 30), "its shape is"),
        (file("d.npy", &npy("(1099511627776, 4)"), 9 << 30), "is truncated"),
        (file("a.safetensors", &safetensors("[1,2147483648]", 8 << 30), 9 << 30), wide),
        (file("a.jsonl", jsonl.as_bytes(), jsonl.len() as u64), wide),
        (file("a.csv", csv.as_bytes(), csv.len() as u64), wide),
        // A file of zeros, which has no line end.
        (file("zeros.csv", b"a", 9 << 30), "is not a vector file"),
    ];
    for (path, reason) in cases {
        let error = VectorFile::open_any(&path, VectorField::Auto).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
