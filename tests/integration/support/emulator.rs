//! Runs CUDA kernels on the CPU with `tests/cuda/emulator.cpp`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use sconce::ops::gpu::{Arg, Launch, LaunchOutput};

/// Runs a launch and returns its output. The emulator checks that every address is inside its tensor.
pub fn launch(launch: &Launch) -> Tensor {
    let (shape, dtype, before) = match &launch.output {
        // All bits set are NaN in every dtype, so elements that are not written show.
        LaunchOutput::New(shape, dtype) => {
            (shape.clone(), *dtype, vec![0xff; shape.iter().product::<usize>() * dtype.size_in_bytes()])
        }
        LaunchOutput::InPlace(tensor) => (tensor.dims().to_vec(), tensor.dtype(), bytes(tensor)),
    };
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
    buffer(&before, &mut request);
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
    let mut child = Command::new(emulator())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the emulator starts");
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&request));
    let output = child.wait_with_output().unwrap();
    let sent = writer.join().unwrap();
    assert!(
        output.status.success() && sent.is_ok(),
        "{}: {}",
        launch.kernel,
        String::from_utf8_lossy(&output.stderr)
    );
    tensor(&output.stdout[..before.len()], dtype, &shape)
}

/// The emulator, compiled once per test process with AddressSanitizer.
fn emulator() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulator-{}", std::process::id()));
        let output = Command::new("c++")
            .args(["-std=c++20", "-O1", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover"])
            .arg("-I")
            .arg(root.join("src/kernels/cuda"))
            .arg(root.join("tests/cuda/emulator.cpp"))
            .arg("-o")
            .arg(&program)
            .output()
            .expect("c++ is required: install g++");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
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

fn tensor(bytes: &[u8], dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::from_raw_buffer(bytes, dtype, shape, &Device::Cpu).unwrap()
}
