//! Runs CUDA kernels on the CPU with `tests/cuda/emulator.cpp`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use sconce::ops::gpu::{Arg, Launch, LaunchOutput};

use super::copy_folder;

/// The kernels, compiled for the CPU with AddressSanitizer.
pub struct Emulator {
    program: PathBuf,
}

impl Emulator {
    /// The kernels of this crate, compiled once per test process.
    pub fn of_this_crate() -> &'static Emulator {
        static EMULATOR: OnceLock<Emulator> = OnceLock::new();
        EMULATOR.get_or_init(|| {
            let program = format!("emulator-{}", std::process::id());
            compile(root(), Path::new(env!("CARGO_TARGET_TMPDIR")).join(program))
        })
    }

    /// The kernels with faults, compiled in `folder`. A fault is a source file, a text that is in it once,
    /// and the text that replaces it.
    pub fn with_faults(faults: &[(&str, &str, &str)], folder: &Path) -> Emulator {
        for sources in [SOURCES, "tests/cuda"] {
            fs::create_dir_all(folder.join(sources)).unwrap();
            copy_folder(&root().join(sources), &folder.join(sources));
        }
        for (file, from, to) in faults {
            let path = folder.join(SOURCES).join(file);
            let source = fs::read_to_string(&path).unwrap();
            assert_eq!(source.matches(from).count(), 1, "{file}: {from}");
            fs::write(&path, source.replace(from, to)).unwrap();
        }
        compile(folder, folder.join("emulator"))
    }

    /// Runs a launch and returns its output. The emulator checks that every address is inside its tensor.
    ///
    /// # Errors
    /// If the emulator refuses the launch, with its message.
    pub fn run(&self, launch: &Launch) -> Result<Tensor> {
        let (shape, dtype, before) = match &launch.output {
            // All bits set are NaN in every dtype, so elements that are not written show.
            LaunchOutput::New(shape, dtype) => {
                (shape.clone(), *dtype, vec![0xff; shape.iter().product::<usize>() * dtype.size_in_bytes()])
            }
            LaunchOutput::InPlace(tensor) => (tensor.dims().to_vec(), tensor.dtype(), bytes(tensor)),
        };
        let request = request(launch, &before);
        let mut child = Command::new(&self.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the emulator starts");
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(&request));
        let output = child.wait_with_output().unwrap();
        let sent = writer.join().unwrap();
        if !output.status.success() || sent.is_err() {
            candle_core::bail!("{}", String::from_utf8_lossy(&output.stderr))
        }
        Tensor::from_raw_buffer(&output.stdout[..before.len()], dtype, &shape, &Device::Cpu)
    }
}

/// A launch in the protocol of the emulator, with the bytes of its output before the launch.
fn request(launch: &Launch, output: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    let count = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    request.extend(count(launch.kernel.len()));
    request.extend(launch.kernel.as_bytes());
    request.extend(launch.grid.iter().chain([&launch.block]).flat_map(|n| count(*n)));
    request.extend(count(1 + launch.args.len()));
    let buffer = |bytes: &[u8], request: &mut Vec<u8>| {
        request.push(1);
        request.extend((bytes.len() as u64).to_le_bytes());
        request.extend(bytes);
    };
    buffer(output, &mut request);
    for arg in &launch.args {
        match arg {
            Arg::Tensor(None) => request.push(0),
            Arg::Tensor(Some(tensor)) => buffer(&bytes(tensor), &mut request),
            Arg::U32(count) => {
                request.push(2);
                request.extend(count.to_le_bytes());
            }
            Arg::F32(value) => {
                request.push(3);
                request.extend(value.to_le_bytes());
            }
        }
    }
    request
}

/// The folder of the kernels.
const SOURCES: &str = "src/kernels/cuda";

/// The folder of this crate.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles the emulator and the kernels below `root`.
fn compile(root: &Path, program: PathBuf) -> Emulator {
    let output = Command::new("c++")
        .args(["-std=c++20", "-O1", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover"])
        .arg("-I")
        .arg(root.join(SOURCES))
        .arg(root.join("tests/cuda/emulator.cpp"))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("c++ is required: install g++");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Emulator { program }
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let flat = tensor.flatten_all().unwrap();
    match tensor.dtype() {
        DType::U32 => flat.to_vec1::<u32>().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F32 => flat.to_vec1::<f32>().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => flat.to_vec1::<f16>().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::BF16 => flat.to_vec1::<bf16>().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect(),
        other => panic!("no CUDA kernel takes {other:?}"),
    }
}
