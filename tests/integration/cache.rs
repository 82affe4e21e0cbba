//! `sconce cache` and `sconce models`.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::{copy_folder, fixture, rows, sconce, stderr, stdout};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A command with the caches of a folder.
fn with_caches(folder: &Path) -> Command {
    let mut command = sconce();
    command.env("HF_HUB_CACHE", folder.join("hub")).env("SCONCE_CACHE", folder.join("own"));
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    let output = with_caches(folder).args(args).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

/// A complete model, one whose download was interrupted, packed weights, digests and checks of kernels.
fn make_caches(folder: &Path) {
    let snapshot = |id: &str| folder.join(format!("hub/models--org--{id}"));
    for id in ["complete", "partial"] {
        let files = snapshot(id).join("snapshots").join(COMMIT);
        fs::create_dir_all(&files).unwrap();
        copy_folder(&fixture("bert-tiny"), &files);
        fs::create_dir_all(snapshot(id).join("refs/pr")).unwrap();
        fs::write(snapshot(id).join("refs/main"), COMMIT).unwrap();
    }
    fs::write(snapshot("complete").join("refs/pr/1"), COMMIT).unwrap();
    fs::remove_file(snapshot("partial").join("snapshots").join(COMMIT).join("model.safetensors")).unwrap();
    for kind in ["weights", "digests", "kernels"] {
        fs::create_dir_all(folder.join("own").join(kind)).unwrap();
        fs::write(folder.join("own").join(kind).join("a"), [0; 1000]).unwrap();
    }
}

/// The kinds, sizes and names of what is listed.
fn listed(output: &Output) -> Vec<[Value; 3]> {
    rows(output).iter().map(|row| ["kind", "bytes", "name"].map(|key| row[key].clone())).collect()
}

#[test]
fn caches_are_listed_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert_eq!(stdout(&run(folder, &["cache", "--output-format", "jsonl"])), "");
    make_caches(folder);
    let all = listed(&run(folder, &["cache", "--output-format", "jsonl"]));
    let names: Vec<[&Value; 2]> = all.iter().map(|[kind, _, name]| [kind, name]).collect();
    let [digests, kernels] = ["digests", "kernels"].map(|kind| json!(folder.join("own").join(kind)));
    let expected = [
        ["models", "org/complete"],
        ["models", "org/partial"],
        ["weights", "a"],
        ["digests", digests.as_str().unwrap()],
        ["kernels", kernels.as_str().unwrap()],
    ];
    assert_eq!(json!(names), json!(expected));
    assert_eq!(all[2][1], json!(1000));
    let text = stdout(&run(folder, &["cache"]));
    assert!(text.contains("1.0 kB") && text.contains("today"), "{text}");

    // Of the two, one was used a hundred days ago.
    let old = SystemTime::now() - Duration::from_secs(100 * 24 * 3600);
    let file = File::options().write(true).open(folder.join("own/weights/a")).unwrap();
    file.set_times(FileTimes::new().set_accessed(old).set_modified(old)).unwrap();
    let cleared = run(folder, &["cache", "--clear", "--older-than", "99", "--output-format", "jsonl"]);
    assert_eq!(listed(&cleared), [[json!("weights"), json!(1000), json!("a")]]);
    assert!(!folder.join("own/weights/a").exists() && folder.join("own/digests/a").exists());

    run(folder, &["cache", "--clear"]);
    assert!(!folder.join("own/digests").exists() && !folder.join("own/kernels").exists());
    assert_eq!(listed(&run(folder, &["cache", "--output-format", "jsonl"])).len(), 2, "models stay");
    run(folder, &["cache", "--clear", "models"]);
    assert_eq!(stdout(&run(folder, &["cache", "--output-format", "jsonl"])), "");
}

#[test]
fn models_are_those_that_run_offline() {
    let folder = tempfile::tempdir().unwrap();
    make_caches(folder.path());
    let models = rows(&run(folder.path(), &["models", "--output-format", "jsonl"]));
    let row = |revision: &str| json!({"model": "org/complete", "revision": revision, "commit": COMMIT});
    assert_eq!(models, [row("main"), row("pr/1")]);
    for (id, runs) in [("org/complete", true), ("org/partial", false)] {
        let output = with_caches(folder.path()).args(["embed", "--offline", "-m", id, "a"]).output().unwrap();
        assert_eq!(output.status.success(), runs, "{id}: {}", stderr(&output));
    }
}
