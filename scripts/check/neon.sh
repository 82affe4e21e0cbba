#!/usr/bin/env bash
# The tests of the kernels for NEON, on an x86-64 machine under qemu: 20 minutes on two cores. Before a release, and after a change of
# src/kernels. On Debian it installs the emulator and a linker for aarch64.
#
#     scripts/check/neon.sh
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
root=$PWD triple=aarch64-unknown-linux-gnu

type qemu-aarch64 aarch64-linux-gnu-gcc >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross; }
rustup target add $triple

# A package of the kernels and their tests, without the rest of sconce.
package=$root/target/neon/package
mkdir -p "$package/src"
cat >"$package/Cargo.toml" <<END
[package]
name = "sconce"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
half = "2"
libm = "0.2"
sconce-kernels = { path = "$root/src/kernels", features = ["emulated-tiles"] }
[[test]]
name = "kernels"
path = "$root/tests/integration/kernels.rs"
[profile.release]
opt-level = 1
END
echo 'pub use sconce_kernels as kernels;' >"$package/src/lib.rs"
export CARGO_TARGET_DIR=$root/target/neon
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
cargo test --manifest-path "$package/Cargo.toml" --release --target $triple --test kernels
