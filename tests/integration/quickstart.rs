//! `scripts/quickstart.sh`, with a stub in place of cargo.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{real_model, stderr, stdout};
use tempfile::TempDir;

/// A directory for `PATH`: links to the programs `names` of this machine, and `stubs` that do nothing.
fn programs(names: &[&str], stubs: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|path| path.join(name))
            .find(|path| path.is_file());
        symlink(found.unwrap_or_else(|| panic!("this machine has {name}")), folder.path().join(name))
            .unwrap();
    }
    for name in stubs {
        let stub = folder.path().join(name);
        fs::write(&stub, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

const TOOLS: &[&str] =
    &["bash", "env", "dirname", "awk", "cat", "sha256sum", "mktemp", "mv", "rm", "sed", "tail", "timeout"];

fn run(path: &Path, root: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/quickstart.sh");
    let mut command = Command::new(script);
    command.env("PATH", path).env("CARGO_INSTALL_ROOT", root).env("HF_HUB_OFFLINE", "1");
    real_model(&mut command);
    command.output().unwrap()
}

#[test]
fn a_missing_cargo_or_compiler_is_an_error_that_says_what_to_install() {
    let root = tempfile::tempdir().unwrap();
    for (stubs, parts) in [
        (&["cc"][..], ["cargo is not installed", "https://rustup.rs"]),
        (&["cargo"], ["cc is not installed", "apt-get install gcc"]),
    ] {
        let output = run(programs(TOOLS, stubs).path(), root.path());
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn the_similarities_of_three_texts_are_printed() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_sconce"), root.path().join("bin/sconce")).unwrap();
    let output = run(programs(TOOLS, &["cargo", "cc"]).path(), root.path());
    let (message, page) = (stderr(&output), stdout(&output));
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("building") && message.contains("fetching") && !message.contains("error"),
        "{message}"
    );
    let scores: Vec<f32> =
        page.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    assert_eq!(scores.len(), 3, "{page}");
    assert!(
        scores[0] > scores[1] && scores[0] > scores[2],
        "the two texts about light are the most similar: {page}"
    );
    assert!(page.len() < 1000, "{page}");
}
