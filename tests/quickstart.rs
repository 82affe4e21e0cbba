//! `scripts/quickstart.sh`, with a cargo that installs nothing in place of the real one.
#![cfg(unix)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use support::{real_model, stderr, stdout};
use tempfile::TempDir;

/// A folder for PATH that has these programs, and those of `names` that the machine has.
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
    &["bash", "env", "dirname", "awk", "cat", "sha256sum", "mktemp", "rm", "sed", "tail", "timeout"];

fn run(path: &Path, root: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/quickstart.sh");
    let mut command = Command::new(script);
    command.env("PATH", path).env("CARGO_INSTALL_ROOT", root).env("HF_HUB_OFFLINE", "1");
    real_model(&mut command);
    command.output().unwrap()
}

#[test]
fn without_cargo_or_a_compiler_it_says_what_to_install() {
    let root = tempfile::tempdir().unwrap();
    for (stubs, parts) in [
        (&["cc"][..], ["cargo is not installed", "https://rustup.rs"]),
        (&["cargo"], ["cc is not installed", "apt-get install gcc"]),
    ] {
        let output = run(programs(TOOLS, stubs).path(), root.path());
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn it_ends_in_the_similarities_of_three_texts() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_sconce"), root.path().join("bin/sconce")).unwrap();
    let output = run(programs(TOOLS, &["cargo", "cc"]).path(), root.path());
    let (said, page) = (stderr(&output), stdout(&output));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("building") && said.contains("fetching") && !said.contains("error"), "{said}");
    let scores: Vec<f32> =
        page.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    assert_eq!(scores.len(), 3, "{page}");
    assert!(scores[0] > scores[1] && scores[0] > scores[2], "the two about light are alike: {page}");
    assert!(page.len() < 1000, "{page}");
}
