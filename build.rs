//! Assembles the kernels for GPUs, and gives the build an identity.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/kernels/cuda/build.rs"]
mod cuda;

fn main() {
    cuda::main();
    // Relocations of a position-independent executable would take 2 MB of the binary, and 1.4 MB of memory of
    // each process.
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux")
        && env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu")
    {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rustc-env=SCONCE_BUILD={:016x}", identity());
    println!("cargo::rustc-env=SCONCE_COMMIT={}", commit());
}

/// The commit of the clone, with `-dirty` if a file was changed since. It is not part of the identity.
fn commit() -> String {
    let described =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).output();
    let described = described.ok().filter(|output| output.status.success());
    let commit = described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    commit.filter(|commit| !commit.is_empty()).unwrap_or_else(|| "unknown".into())
}

/// A hash of what a build is made from: the sources, the versions of the dependencies, the compiler, and what
/// it compiles for. It is the same wherever the same is built, from a clone or from a package, and tells
/// builds of one release apart.
fn identity() -> u64 {
    let mut hash = Fnv::new();
    let mut files = vec![PathBuf::from("Cargo.lock")];
    list(Path::new("src"), &mut files);
    files.sort();
    for file in files {
        println!("cargo::rerun-if-changed={}", file.display());
        hash.part(file.to_string_lossy().replace('\\', "/").as_bytes());
        hash.part(&fs::read(&file).unwrap_or_default());
    }
    // Files that are added or removed.
    println!("cargo::rerun-if-changed=src");
    for variable in ["TARGET", "PROFILE", "OPT_LEVEL", "CARGO_CFG_TARGET_FEATURE", "CARGO_CFG_FEATURE"] {
        hash.part(env::var(variable).unwrap_or_default().as_bytes());
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    hash.part(&version.map(|output| output.stdout).unwrap_or_default());
    hash.0
}

/// Adds all files of a folder.
fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => list(&path, files),
            path => files.push(path),
        }
    }
}

/// FNV-1a of 64 bits.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn part(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
