//! NEON: 32 registers of 4 f32, with or without the dot product of bytes (`sdot`).

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Int8Format, Simd, methods};

/// [`Simd`] with NEON, and with the dot product extension if `DOTPROD`. A value exists only if the processor
/// supports them.
#[derive(Debug, Clone, Copy)]
pub struct Neon<const DOTPROD: bool>(());

impl<const DOTPROD: bool> Neon<DOTPROD> {
    /// # Safety
    /// The processor supports NEON; if `DOTPROD`, also the dot product extension.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Neon(())
    }
}

impl<const DOTPROD: bool> Simd for Neon<DOTPROD> {
    const LANES: usize = 4;
    const MR: usize = 12;
    const FAST_BF16: bool = false;
    const INT8: Int8Format = Int8Format::SIGNED_LHS;
    type F = float32x4_t;
    type I = uint32x4_t;

    methods! {
        splat(x: f32) -> float32x4_t { vdupq_n_f32(x) }
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        sub(a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        div(a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
        fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmaq_f32(c, a, b) }
        max(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmaxq_f32(a, b) }
        min(a: float32x4_t, b: float32x4_t) -> float32x4_t { vminq_f32(a, b) }
        select_less(a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
            vbslq_f32(vcltq_f32(a, b), yes, no)
        }
        abs(x: float32x4_t) -> float32x4_t { vabsq_f32(x) }
        // Both operations propagate NaN.
        extend_range(range: [float32x4_t; 2], x: float32x4_t) -> [float32x4_t; 2] {
            [vminq_f32(range[0], x), vmaxq_f32(range[1], x)]
        }
        reduce_range(range: [float32x4_t; 2]) -> [f32; 2] { [vminvq_f32(range[0]), vmaxvq_f32(range[1])] }
        reduce_sum(x: float32x4_t) -> f32 { vaddvq_f32(x) }
        reduce_max(x: float32x4_t) -> f32 { vmaxvq_f32(x) }
        copysign(x: float32x4_t, sign: float32x4_t) -> float32x4_t {
            vbslq_f32(vdupq_n_u32(1 << 31), sign, x)
        }
        scale_exp2(x: float32x4_t, n: float32x4_t) -> float32x4_t {{
            let n = vcvtnq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))));
            vmulq_f32(vmulq_f32(x, power(half)), power(vsubq_s32(n, half)))
        }}
        splat_u32(element: u32) -> uint32x4_t { vdupq_n_u32(element) }
        i32_to_f32(x: uint32x4_t) -> float32x4_t { vcvtq_f32_s32(vreinterpretq_s32_u32(x)) }
        add_product_i16(sum: uint32x4_t, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {{
            let [a, b] = [a, b].map(|x| vreinterpret_s16_u16(vmovn_u32(x)));
            vreinterpretq_u32_s32(vmlal_s16(vreinterpretq_s32_u32(sum), a, b))
        }}
    }

    #[inline(always)]
    fn dot_int8<const N: usize>(self, sum: uint32x4_t, a: [uint32x4_t; N], b: [uint32x4_t; N]) -> uint32x4_t {
        // SAFETY: `self` exists only if the processor supports NEON, and dot products if `DOTPROD`; nothing
        // here accesses memory.
        unsafe {
            let mut sum = vreinterpretq_s32_u32(sum);
            for (a, b) in a.into_iter().zip(b) {
                if DOTPROD {
                    // `vdotq_s32` is not stable yet.
                    asm!(
                        "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                        sum = inout(vreg) sum,
                        a = in(vreg) a,
                        b = in(vreg) b,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                } else {
                    let (a, b) = (vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b));
                    let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
                    sum = vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8(a, b)));
                }
            }
            vreinterpretq_u32_s32(sum)
        }
    }

    #[inline(always)]
    fn load_partial(self, from: &[f32], pad: f32) -> float32x4_t {
        let mut buffer = [pad; 4];
        for (to, x) in buffer.iter_mut().zip(from) {
            *to = *x;
        }
        // SAFETY: `buffer` is valid for reads of 4 f32.
        unsafe { self.load(buffer.as_ptr()) }
    }

    #[inline(always)]
    fn store_partial(self, to: &mut [f32], x: float32x4_t) {
        let mut buffer = [0f32; 4];
        // SAFETY: `buffer` is valid for writes of 4 f32.
        unsafe { self.store(buffer.as_mut_ptr(), x) };
        for (to, x) in to.iter_mut().zip(buffer) {
            *to = x;
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        // SAFETY: `self` exists only if the processor supports NEON; `from` is valid for reads of 4 f32 by
        // the contract of this method.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: float32x4_t) {
        // SAFETY: `self` exists only if the processor supports NEON; `to` is valid for writes of 4 f32 by the
        // contract of this method.
        unsafe { vst1q_f32(to, x) }
    }

    #[inline(always)]
    unsafe fn load_u32(self, from: *const u32) -> uint32x4_t {
        // SAFETY: `self` exists only if the processor supports NEON; `from` is valid for reads of 4 u32 by
        // the contract of this method.
        unsafe { vld1q_u32(from) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: float32x4_t) {
        // SAFETY: `self` exists only if the processor supports NEON; `to` is valid for writes of 4 u16 by the
        // contract of this method.
        unsafe {
            let bits = vreinterpretq_u32_f32(x);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            // Rounding could carry a NaN into infinity or 0, so a NaN is truncated and made quiet.
            let nan = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
            vst1_u16(to, vshrn_n_u32::<16>(vbslq_u32(vceqq_f32(x, x), rounded, nan)));
        }
    }

    #[inline(always)]
    unsafe fn store_int8_lhs(self, to: *mut u8, x: float32x4_t) {
        // SAFETY: `self` exists only if the processor supports NEON; `to` is valid for writes of 4 bytes by
        // the contract of this method.
        unsafe {
            let offset = vdupq_n_s32(i32::from(Self::INT8.lhs_offset));
            let x = vqmovn_s32(vsubq_s32(vcvtnq_s32_f32(x), offset));
            let x = vreinterpret_u32_s8(vqmovn_s16(vcombine_s16(x, x)));
            to.cast::<u32>().write_unaligned(vget_lane_u32::<0>(x));
        }
    }
}
