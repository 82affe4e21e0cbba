//! Compiles the CUDA kernels to PTX for compute capability 8.0, in builds with the feature `cuda`. The driver
//! compiles the PTX for any GPU from Ampere on.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const SOURCES: [&str; 6] = ["attention", "linear", "lookup", "norm", "pooling", "rotary"];

/// Compiles the kernels if the feature `cuda` is on.
pub(crate) fn main() {
    let folder = Path::new("src/kernels/cuda");
    println!("cargo::rerun-if-changed={}", folder.display());
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    for variable in ["NVCC", "CUDA_HOME"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let nvcc = match (env::var_os("NVCC"), env::var_os("CUDA_HOME")) {
        (Some(nvcc), _) => PathBuf::from(nvcc),
        (None, Some(home)) if Path::new(&home).join("bin/nvcc").exists() => Path::new(&home).join("bin/nvcc"),
        _ => PathBuf::from("nvcc"),
    };
    let to = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for source in SOURCES {
        let (from, to) = (folder.join(source).with_extension("cu"), to.join(source).with_extension("ptx"));
        let mut command = Command::new(&nvcc);
        command.args(["--ptx", "-arch=compute_80", "-O3", "-o"]).arg(&to).arg(&from);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => fail(&format!("{} failed on {} ({status})", nvcc.display(), from.display())),
            Err(error) => {
                fail(&format!("cannot run {} ({error}); set CUDA_HOME to a CUDA toolkit", nvcc.display()))
            }
        }
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}
