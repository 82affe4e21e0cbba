//! From a weight to a colour.

use super::HeatMaps;

/// Colours of each sign, without that of 0.
pub(super) const LEVELS: usize = 64;

/// The background that colours are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Theme {
    /// 0 is white.
    Light,
    /// 0 is almost black.
    Dark,
}

/// The range of colours: values from `−max` to `max`. A colour changes with the square root of the value, so
/// that the small probabilities of long texts are visible.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    /// The value with the last colour.
    pub max: f32,
    /// Whether there are negative values, as after the projection of talking heads.
    pub has_negative: bool,
}

impl Scale {
    /// From 0 to 1 for probabilities; the range of the values if they are not. Values that are not finite
    /// count as 0.
    pub(super) fn of(maps: &HeatMaps) -> Self {
        // Rounding: a softmax can exceed 1 by a few units in the last place.
        let tolerance = 1e-4;
        let finite = maps.values.iter().filter(|value| value.is_finite());
        let (mut max, mut has_negative) = (1.0, false);
        for &value in finite {
            if value.abs() > max + tolerance {
                max = value.abs();
            }
            has_negative |= value < -tolerance;
        }
        Scale { max, has_negative }
    }

    /// The position of a value on the scale, from −1 to 1.
    pub(super) fn position(self, value: f32) -> f32 {
        if !value.is_finite() {
            return 0.0;
        }
        ((value.abs() / self.max).min(1.0).sqrt()).copysign(value)
    }

    /// The colour of a value: 0, or up to [`LEVELS`] of its sign.
    pub(super) fn level(self, value: f32) -> i32 {
        (self.position(value) * LEVELS as f32).round() as i32
    }

    /// The values with a tick on the legend.
    pub(super) fn ticks(self) -> Vec<f32> {
        let ticks = [0.0, 0.01, 0.05, 0.2, 0.5, 1.0].map(|tick| tick * self.max);
        let negative = ticks[1..].iter().rev().map(|tick| -tick);
        negative.filter(|_| self.has_negative).chain(ticks).collect()
    }
}

/// Lightness, chroma and hue (OKLCh, Ottosson 2020) of 0, three colours between, and the largest value.
/// Lightness changes evenly.
const LIGHT: [[f32; 3]; 5] =
    [[1.0, 0.0, 235.0], [0.81, 0.09, 235.0], [0.62, 0.14, 250.0], [0.43, 0.15, 265.0], [0.24, 0.09, 275.0]];
/// The same on a dark background.
const DARK: [[f32; 3]; 5] =
    [[0.2, 0.01, 275.0], [0.39, 0.12, 280.0], [0.57, 0.14, 250.0], [0.76, 0.12, 200.0], [0.95, 0.13, 110.0]];
/// Added to the hue of negative values, which become reddish.
const NEGATIVE_HUE: f32 = 140.0;

/// The sRGB colour of a position on a scale, from −1 to 1.
pub(super) fn colour(position: f32, theme: Theme) -> [u8; 3] {
    let stops = if theme == Theme::Light { &LIGHT } else { &DARK };
    let at = position.abs().min(1.0) * (stops.len() - 1) as f32;
    let first = (at as usize).min(stops.len() - 2);
    let part = at - first as f32;
    // Interpolated in OKLab: chroma and hue as a vector.
    let lab = |[l, chroma, hue]: [f32; 3]| {
        let hue = (hue + if position < 0.0 { NEGATIVE_HUE } else { 0.0 }).to_radians();
        [l, chroma * hue.cos(), chroma * hue.sin()]
    };
    let (from, to) = (lab(stops[first]), lab(stops[first + 1]));
    srgb([0, 1, 2].map(|i| from[i] + part * (to[i] - from[i])))
}

/// OKLab → sRGB (Ottosson 2020, "A perceptual color space for image processing").
fn srgb([l, a, b]: [f32; 3]) -> [u8; 3] {
    let cubed = [
        l + 0.396_337_78 * a + 0.215_803_76 * b,
        l - 0.105_561_346 * a - 0.063_854_17 * b,
        l - 0.089_484_18 * a - 1.291_485_5 * b,
    ]
    .map(|x| x * x * x);
    let linear = [
        [4.076_741_7, -3.307_711_6, 0.230_969_94],
        [-1.268_438, 2.609_757_4, -0.341_319_4],
        [-0.004_196_086_3, -0.703_418_6, 1.707_614_7],
    ]
    .map(|row| row[0] * cubed[0] + row[1] * cubed[1] + row[2] * cubed[2]);
    linear.map(|x| {
        let encoded = if x <= 0.003_130_8 { 12.92 * x } else { 1.055 * x.powf(1.0 / 2.4) - 0.055 };
        (encoded.clamp(0.0, 1.0) * 255.0).round() as u8
    })
}

/// A colour as in CSS: `#0a1b2c`.
pub(super) fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// The index of the nearest colour of the 256 of xterm that terminals do not redefine: the cube of 6³
/// colours, and 24 greys.
pub(super) fn xterm(rgb: [u8; 3]) -> u8 {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let cube = (0..216u8).map(|i| (16 + i, [i / 36, i / 6 % 6, i % 6].map(|step| STEPS[usize::from(step)])));
    let greys = (0..24u8).map(|i| (232 + i, [8 + 10 * i; 3]));
    let distance =
        |other: [u8; 3]| -> u32 { rgb.iter().zip(other).map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum() };
    cube.chain(greys).min_by_key(|(_, other)| distance(*other)).map_or(16, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::{LEVELS, Scale, Theme, colour, hex, xterm};
    use crate::figure::maps::tests::uniform;

    #[test]
    fn lightness_falls_from_white_and_rises_from_black() {
        let sum = |position: f32, theme| colour(position, theme).iter().map(|x| u32::from(*x)).sum::<u32>();
        assert_eq!(hex(colour(0.0, Theme::Light)), "#ffffff");
        for i in 0..LEVELS {
            let (a, b) = (i as f32 / LEVELS as f32, (i + 1) as f32 / LEVELS as f32);
            assert!(sum(a, Theme::Light) > sum(b, Theme::Light), "light at {a}");
            assert!(sum(-a, Theme::Light) > sum(-b, Theme::Light), "light at −{a}");
            assert!(sum(a, Theme::Dark) < sum(b, Theme::Dark), "dark at {a}");
        }
        let [r, _, b] = colour(-0.6, Theme::Light);
        assert!(r > b, "negative values are reddish");
    }

    #[test]
    fn the_scale_covers_weights_that_are_not_probabilities() {
        let mut maps = uniform(&["a", "b"]);
        assert_eq!(Scale::of(&maps), Scale { max: 1.0, has_negative: false });
        maps.values = vec![0.5, -2.0, f32::NAN, f32::INFINITY];
        let scale = Scale::of(&maps);
        assert_eq!(scale, Scale { max: 2.0, has_negative: true });
        let levels: Vec<i32> = maps.values.iter().map(|value| scale.level(*value)).collect();
        assert_eq!(levels, [32, -64, 0, 0]);
        assert_eq!(scale.ticks(), [-2.0, -1.0, -0.4, -0.1, -0.02, 0.0, 0.02, 0.1, 0.4, 1.0, 2.0]);
    }

    #[test]
    fn colours_of_terminals_are_the_nearest() {
        assert_eq!([xterm([255, 255, 255]), xterm([0, 0, 0]), xterm([8, 8, 9])], [231, 16, 232]);
        assert_eq!(xterm([0, 95, 175]), 25);
    }
}
