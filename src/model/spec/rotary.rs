//! Rotary embeddings of a config, and the scaling of their frequencies.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::model::config::Config;
use crate::model::families::{ConfigKeys, LocalRotary};
use crate::nn::{Frequencies, Rotary, RotaryLayout, RotaryScaling};

/// Rotary embeddings; the thetas are defaults.
pub(super) fn rotary(
    config: &Config,
    keys: &ConfigKeys,
    layout: RotaryLayout,
    theta: f64,
    local: Option<LocalRotary>,
) -> Result<Rotary> {
    // transformers prefers the older name where both are present.
    let parameters = match config.object("rope_scaling")?.filter(|scaling| !scaling.fields().is_empty()) {
        Some(parameters) => Some(parameters),
        None => config.object("rope_parameters")?,
    };
    const LOCAL: &str = "sliding_attention";
    let frequencies = |layer_type: &str, key: &str, theta: f64| -> Result<Frequencies> {
        // One set of parameters for each type of layer, or one for all.
        let parameters = match &parameters {
            Some(all) if all.has("full_attention") || all.has(LOCAL) => all.object(layer_type)?,
            _ if layer_type == LOCAL && !local.is_some_and(|local| local.shares_scaling) => None,
            all => all.clone(),
        };
        let (object, key) = match parameters.as_ref().filter(|parameters| parameters.has("rope_theta")) {
            Some(parameters) => (parameters, "rope_theta"),
            None => (config, key),
        };
        let theta = object.number(key, theta)?;
        if theta <= 1.0 {
            bail!("{}", object.invalid(key, theta, "more than 1"));
        }
        let scaling = match &parameters {
            Some(parameters) => Scaling { config, max_positions: keys.max_positions, parameters }.read()?,
            None => RotaryScaling::None,
        };
        Ok(Frequencies { theta, scaling })
    };
    Ok(Rotary {
        frequencies: frequencies("full_attention", keys.rope_theta, theta)?,
        local: (local.as_ref()).map(|local| frequencies(LOCAL, local.theta_key, local.theta)).transpose()?,
        layout,
        rotate_values: config.flag("rotary_value")?,
        stored_table: false,
        rotated_dims: None,
    })
}

/// The parameters of a scaling of rotary frequencies.
struct Scaling<'a> {
    /// The config, and its key for the number of positions.
    config: &'a Config,
    max_positions: &'static str,
    /// `rope_scaling` of the config, or an object in it for a type of layer.
    parameters: &'a Config,
}

impl Scaling<'_> {
    fn read(&self) -> Result<RotaryScaling> {
        let parameters = self.parameters;
        let key = if parameters.has("rope_type") { "rope_type" } else { "type" };
        let kind = parameters.string(key)?.unwrap_or("default");
        self.check_rotates_all(kind)?;
        let factor = || parameters.required_number("factor");
        Ok(match kind {
            "default" => RotaryScaling::None,
            "dynamic" => RotaryScaling::Dynamic {
                factor: factor()?,
                original_max_positions: self.config.required_number(self.max_positions)?,
            },
            "linear" => RotaryScaling::Linear { factor: factor()? },
            "ntk" if parameters.has("mixed_b") => {
                let expected = "no such field, since it is not supported";
                bail!("{}", parameters.invalid("mixed_b", "a number", expected))
            }
            "ntk" => RotaryScaling::Ntk { factor: factor()? },
            "llama3" => {
                let factor = factor()?;
                let low_freq_factor = parameters.required_number("low_freq_factor")?;
                let high_freq_factor = parameters.required_number("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    let expected = "more than \"low_freq_factor\"";
                    bail!("{}", parameters.invalid("high_freq_factor", high_freq_factor, expected))
                }
                let original_max_positions = self.original_max_positions()?;
                RotaryScaling::NtkByParts {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_positions,
                }
            }
            "yarn" => {
                let factor = self.factor_or_ratio(true)?;
                RotaryScaling::Yarn {
                    factor,
                    beta_fast: parameters.number("beta_fast", 32.0)?,
                    beta_slow: parameters.number("beta_slow", 1.0)?,
                    original_max_positions: self.original_max_positions()?,
                    attention_factor: self.yarn_attention_factor(factor)?,
                    truncate: parameters.flag_or("truncate", true)?,
                }
            }
            "longrope" => self.long_rope()?,
            other => {
                let expected = "default, linear, dynamic, ntk, llama3, yarn or longrope";
                bail!("{}", parameters.invalid(key, format!("{other:?}"), expected))
            }
        })
    }

    /// Fails if frequencies are scaled and only a part of each head is rotated. transformers rotates whole
    /// heads in the classes of the encoders that are supported, whatever the field says, and fails with
    /// scaled frequencies.
    fn check_rotates_all(&self, kind: &str) -> Result<()> {
        const KEY: &str = "partial_rotary_factor";
        for object in [self.config, self.parameters] {
            let fraction = object.number(KEY, 1.0)?;
            if fraction != 1.0 && kind != "default" {
                let expected =
                    "1, since frequencies are scaled, which is not supported for a part of each head";
                bail!("{}", object.invalid(KEY, fraction, expected));
            }
        }
        Ok(())
    }

    /// The length of the original context in tokens.
    fn original_max_positions(&self) -> Result<f64> {
        const KEY: &str = "original_max_position_embeddings";
        match [self.config, self.parameters].into_iter().find(|object| object.has(KEY)) {
            Some(object) => object.required_number(KEY),
            None => self.config.required_number(self.max_positions),
        }
    }

    /// The factor; where it is null, or absent and not `is_required`, the ratio of the context to the
    /// original one.
    fn factor_or_ratio(&self, is_required: bool) -> Result<f64> {
        const KEY: &str = "factor";
        if self.parameters.has(KEY) || is_required && !self.parameters.fields().contains_key(KEY) {
            return self.parameters.required_number(KEY);
        }
        Ok(self.config.required_number(self.max_positions)? / self.original_max_positions()?)
    }

    /// The factor of YaRN on sines and cosines, from `attention_factor`, else from `mscale` and
    /// `mscale_all_dim`, else from the factor.
    fn yarn_attention_factor(&self, factor: f64) -> Result<f64> {
        let parameters = self.parameters;
        if parameters.has("attention_factor") {
            return parameters.required_number("attention_factor");
        }
        let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let [over, under] = ["mscale", "mscale_all_dim"].map(|key| parameters.optional_number(key));
        // 0 counts as absent.
        Ok(match (over?.filter(|x| *x != 0.0), under?.filter(|x| *x != 0.0)) {
            (Some(over), Some(under)) => scale(over) / scale(under),
            _ => scale(1.0),
        })
    }

    /// LongRoPE: a factor for each pair.
    fn long_rope(&self) -> Result<RotaryScaling> {
        let (parameters, original_max_positions) = (self.parameters, self.original_max_positions()?);
        let factors = |key: &str| -> Result<Vec<f64>> {
            let value = parameters.get(key);
            let list = value.and_then(Value::as_array).and_then(|list| {
                list.iter().map(|x| x.as_f64().filter(|x| x.is_finite() && *x > 0.0)).collect()
            });
            match list {
                Some(list) => Ok(list),
                None => {
                    let expected = "a list of positive numbers, one for each pair of dimensions of a head";
                    bail!("{}", parameters.invalid(key, value.unwrap_or(&Value::Null), expected))
                }
            }
        };
        let attention_factor = if parameters.has("attention_factor") {
            parameters.required_number("attention_factor")?
        } else {
            let factor = self.factor_or_ratio(false)?;
            if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original_max_positions.ln()).sqrt() }
        };
        Ok(RotaryScaling::LongRope {
            short_factors: factors("short_factor")?,
            long_factors: factors("long_factor")?,
            original_max_positions,
            attention_factor,
        })
    }
}

/// Checks that LongRoPE has a factor for each pair of dimensions.
pub(super) fn check_factors(config: &Config, frequencies: &Frequencies, pairs: usize) -> Result<()> {
    let RotaryScaling::LongRope { short_factors, long_factors, .. } = &frequencies.scaling else {
        return Ok(());
    };
    for (key, factors) in [("short_factor", short_factors), ("long_factor", long_factors)] {
        if factors.len() != pairs {
            let found = format!("a list of {}", factors.len());
            bail!(
                "{}",
                config.invalid(key, found, &format!("one factor for each of {pairs} pairs of dimensions"))
            )
        }
    }
    Ok(())
}

/// Fails if a config rotates only a part of each head.
pub(super) fn refuse_fraction(config: &Config, key: &str) -> Result<()> {
    match config.number(key, 1.0)? {
        1.0 => Ok(()),
        fraction => {
            let expected = "1, since partial rotary embeddings are not supported for this model type";
            bail!("{}", config.invalid(key, fraction, expected))
        }
    }
}
