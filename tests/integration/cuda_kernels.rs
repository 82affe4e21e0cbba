//! The check of the CUDA kernels in an emulator on the CPU: every kernel, as the operations launch it,
//! matches the plain candle reference in every dtype, and faults of kernels are found.

use std::cell::RefCell;
use std::collections::BTreeSet;

use candle_core::{DType, Device, Tensor};
use sconce::ops::activation::Activation;
use sconce::ops::add_norm::{NormKind, NormWeights};
use sconce::ops::attention::{Attention, query_tiles};
use sconce::ops::gpu::{Launch, LaunchOutput, Verdicts, trust};
use sconce::ops::rotary::Rotation;
use sconce::ops::self_check::{check, kernel_names};
use sconce::ops::{add_norm, linear, lookup};

use crate::support::emulator::Emulator;
use crate::support::operands;

/// Asserts that the kernels for a dtype match their references.
fn all_match(dtype: DType) {
    let launched = RefCell::new(BTreeSet::new());
    let mut verdicts = Verdicts::new();
    let run = |launch: &Launch| {
        launched.borrow_mut().insert(launch.kernel.clone());
        Emulator::of_this_crate().run(launch)
    };
    check(dtype, 1.0, &mut verdicts, &run).unwrap();
    let names: BTreeSet<String> = kernel_names(dtype).unwrap().into_iter().collect();
    assert_eq!(verdicts, names.iter().map(|name| (name.clone(), None)).collect());
    assert_eq!(launched.into_inner(), names);
}

#[test]
fn kernels_for_f32_match_the_reference() {
    all_match(DType::F32);
}

#[test]
fn kernels_for_f16_match_the_reference() {
    all_match(DType::F16);
}

#[test]
fn kernels_for_bf16_match_the_reference() {
    all_match(DType::BF16);
}

/// Wrong results, an activation that is not applied, and an access past the end of a tensor: the kernels are
/// named, and the reference computes in their place.
#[test]
fn kernels_with_faults_are_found_and_not_launched() {
    let folder = tempfile::tempdir().unwrap();
    let faults = [
        ("attention.cu", "row_sum[r] *= rescale;", ""),
        (
            "linear.cu",
            "case SILU: return apply(y, [](float x) { return times_sigmoid(x, x); });",
            "case SILU: return;",
        ),
        (
            "rotary.cu",
            "y[1][i] = x[1][i] * c[i] + x[0][i] * s[i];",
            "y[1][i] = x[1][i] * c[i] - x[0][i] * s[i];",
        ),
        ("pooling.cu", "if (column >= width) return;", ""),
    ];
    let emulator = Emulator::with_faults(&faults, folder.path());
    let mut verdicts = Verdicts::new();
    while check(DType::BF16, 1.0, &mut verdicts, &|launch| emulator.run(launch)).unwrap().is_some() {}
    trust(&Device::Cpu, &verdicts);
    for name in kernel_names(DType::BF16).unwrap() {
        let fault = verdicts[&name].as_deref().unwrap_or_default();
        let expected = match name.split('_').next() {
            Some("attention" | "rotate") => "expected",
            Some("linear") => "silu of 3 × 7, residual false: element 0 is",
            Some("pool") => "it does not run: ",
            _ => "",
        };
        assert!(fault.contains(expected) && fault.is_empty() == expected.is_empty(), "{name}: {fault}");
        // A launch fails on the CPU.
        let x = Tensor::ones(1, DType::BF16, &Device::Cpu).unwrap();
        let launch =
            Launch { kernel: name, grid: [1; 3], block: 32, output: LaunchOutput::InPlace(&x), args: vec![] };
        assert_eq!(launch.run_or(&x, || Ok(x.clone())).is_ok(), !fault.is_empty(), "{}", launch.kernel);
    }
}

/// A kernel would read such operands past their end or misinterpret them.
#[test]
fn operands_that_do_not_match_are_rejected() {
    let of = |shape: &[usize], dtype| operands::tensor(1, shape).to_dtype(dtype).unwrap();
    let (x, wide) = (of(&[3, 8], DType::F16), of(&[3, 8], DType::F32));
    let (row, index) = (of(&[8], DType::F16), Tensor::new(&[0u32, 1, 2], &Device::Cpu).unwrap());
    let short = of(&[2, 8], DType::F16);
    assert!(linear::launch(&of(&[3, 8], DType::F64), Activation::Gelu, None).is_err(), "no kernel for f64");
    for residual in [&short, &wide] {
        assert!(linear::launch(&x, Activation::Gelu, Some(residual)).is_err());
    }
    let norm = |weight: &Tensor, bias: Option<&Tensor>| {
        let norm =
            NormWeights { kind: NormKind::Layer, weight: weight.clone(), bias: bias.cloned(), eps: 0.1 };
        add_norm::launch(&x, Some(&x), &norm).is_ok()
    };
    assert!(norm(&row, Some(&row)) && norm(&row, None));
    assert!(!norm(&of(&[7], DType::F16), None) && !norm(&row, Some(&of(&[8], DType::F32))));
    assert!(lookup::launch(&[(x.clone(), index.clone()), (short.clone(), index.clone())], None).is_ok());
    assert!(lookup::launch(&[(x.clone(), index.clone()), (wide.clone(), index.clone())], None).is_err());
    assert!(lookup::launch(&vec![(x.clone(), index.clone()); 5], None).is_err(), "five tables");
    let plain = Attention { key_value_heads: 1, ..Attention::plain(2, 4) };
    let query_tiles = query_tiles(&[0, 3], &Device::Cpu).unwrap();
    assert!(plain.launch(&x, &of(&[3, 4], DType::F16), &of(&[3, 4], DType::F16), &query_tiles).is_ok());
    for keys in [&x, &of(&[2, 4], DType::F16), &of(&[3, 4], DType::BF16)] {
        assert!(plain.launch(&x, keys, keys, &query_tiles).is_err());
    }
    let rotation = Rotation { cos: of(&[4, 2], DType::F32), sin: of(&[4, 2], DType::F32), interleaved: true };
    assert!(rotation.launch(&x, &index, 4).is_ok());
    assert!(rotation.launch(&short, &index, 4).is_err(), "one position too many");
}
