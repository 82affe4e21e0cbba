//! One encoder layer (Vaswani et al. 2017, §3.1).

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;

use super::attention::{AttentionContext, SelfAttention};
use super::bottleneck::{Bottleneck, Narrowed};
use super::feed_forward::FeedForward;
use super::norm::Norm;
use super::relative_position::RelativeEmbeddings;
use super::rows::Selection;
use super::short_convolution::GatedConvolution;
use super::{AttentionWeights, EncoderSpec, NormPlacement, WeightSource};

/// Self-attention or a short convolution, then feed-forward networks, in nearly all models one, each inside
/// a residual connection.
pub(super) struct Layer {
    bottleneck: Option<Bottleneck>,
    mixer: Mixer,
    mixer_residual: Residual,
    feed_forwards: Vec<(FeedForward, Residual)>,
}

/// The sublayer through which tokens see each other.
enum Mixer {
    Attention(Box<SelfAttention>),
    Convolution(Box<GatedConvolution>),
}

/// A residual connection with its norms: after the sum (post-norm, Vaswani et al. 2017), before the sublayer
/// (pre-norm, Xiong et al. 2020), before the sublayer and on its output (sandwich-LN, Ding et al. 2021), or
/// after the sum with one more inside.
struct Residual {
    norm: Option<Norm>,
    is_post_norm: bool,
    output_norm: Option<Norm>,
    /// See [`EncoderSpec::residual_scale`].
    scale: Option<f64>,
}

impl Layer {
    /// Loads `NAME.{attention,attention_norm,feed_forward,feed_forward_norm}`, in some layers
    /// `NAME.short_convolution` for attention, and `NAME.{attention,feed_forward}_output_norm` where the spec
    /// has them. Some specs skip the attention
    /// norm of the first layer. All feed-forward networks but the last one are
    /// `NAME.stacked.N.feed_forward`, and a bottleneck is `NAME.bottleneck`. `index` counts the sets of
    /// weights.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        spec: &EncoderSpec,
        relative: Option<&Arc<RelativeEmbeddings>>,
        index: usize,
    ) -> Result<Self> {
        let is_first = index == 0;
        let residual = |source: &mut dyn WeightSource, sublayer: &str, spec_of_norm, has_norm: bool| {
            let mut norm = |module: &str, has_norm: bool| {
                let name = format!("{name}.{sublayer}_{module}");
                has_norm.then(|| Norm::load(source, &name, spec.sublayer_width(), spec_of_norm)).transpose()
            };
            let has_output_norm = match spec.norm_placement {
                NormPlacement::SandwichAndFinal => true,
                NormPlacement::NestedPost => sublayer == "attention",
                _ => false,
            };
            anyhow::Ok(Residual {
                norm: norm("norm", has_norm)?,
                is_post_norm: spec.norm_placement.is_post_norm(),
                output_norm: norm("output_norm", has_output_norm)?,
                scale: spec.residual_scale,
            })
        };
        let mixer_residual = residual(source, "attention", spec.norm, !(is_first && spec.skip_first_norm))?;
        let mixer = match &spec.short_convolution {
            Some(convolution) if convolution.layers[index] => {
                let name = format!("{name}.short_convolution");
                Mixer::Convolution(Box::new(GatedConvolution::load(source, &name, spec, convolution)?))
            }
            _ => {
                let name = format!("{name}.attention");
                Mixer::Attention(Box::new(SelfAttention::load(source, &name, spec, relative, index)?))
            }
        };
        let mut feed_forward = |sublayer: &str, spec_of_norm| -> Result<_> {
            let network = FeedForward::load(source, &format!("{name}.{sublayer}"), spec, index)?;
            Ok((network, residual(source, sublayer, spec_of_norm, true)?))
        };
        let mut feed_forwards = (1..spec.feed_forwards)
            .map(|number| feed_forward(&format!("stacked.{}.feed_forward", number - 1), spec.norm))
            .collect::<Result<Vec<_>>>()?;
        feed_forwards.push(feed_forward("feed_forward", spec.output_norm())?);
        let bottleneck = spec.bottleneck.as_ref();
        let bottleneck = bottleneck
            .map(|bottleneck| Bottleneck::load(source, &format!("{name}.bottleneck"), spec, bottleneck))
            .transpose()?;
        Ok(Layer { bottleneck, mixer, mixer_residual, feed_forwards })
    }

    /// `(T, H)` → `(T, H)`, or `(R, H)` for selected tokens. Appends the attention weights to `kept`, if it
    /// is given.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        context: &AttentionContext,
        selection: Option<&Selection>,
        kept: Option<&mut Vec<AttentionWeights>>,
    ) -> Result<Tensor> {
        let Some(bottleneck) = &self.bottleneck else {
            return self.sublayers(x, None, context, selection, kept);
        };
        let Narrowed { residual, attention } = bottleneck.narrow(x)?;
        let y = self.sublayers(&residual, Some(&attention), context, selection, kept)?;
        match selection {
            Some(selection) => bottleneck.widen(&y, &selection.hidden.select(x)?),
            None => bottleneck.widen(&y, x),
        }
    }

    /// Attention and the feed-forward networks. `inputs` are those of queries and keys, and of values,
    /// where they are not `x`.
    fn sublayers(
        &self,
        x: &Tensor,
        inputs: Option<&[Tensor; 2]>,
        context: &AttentionContext,
        selection: Option<&Selection>,
        kept: Option<&mut Vec<AttentionWeights>>,
    ) -> Result<Tensor> {
        let mix = |x: &Tensor, residual: Option<&Tensor>| {
            let (x, values) = inputs.map_or((x, None), |[x, values]| (x, Some(values)));
            match &self.mixer {
                Mixer::Attention(attention) => {
                    attention.forward(x, values, context, selection, residual, kept)
                }
                Mixer::Convolution(convolution) => convolution.forward(x, context, selection, residual),
            }
        };
        let mut x = self.mixer_residual.forward(x, selection, mix)?;
        for (network, residual) in &self.feed_forwards {
            x = residual.forward(&x, None, |x, residual| network.forward(x, residual))?;
        }
        Ok(x)
    }
}

impl Residual {
    /// `(T, H)` → `(T, H)`, or `(R, H)` if the sublayer computes selected tokens only. The sublayer gets its
    /// input and, where it can add it to its output itself, the residual.
    fn forward(
        &self,
        x: &Tensor,
        selection: Option<&Selection>,
        sublayer: impl FnOnce(&Tensor, Option<&Tensor>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let residual = match selection {
            Some(selection) => &selection.hidden.select(x)?,
            None => x,
        };
        if let (Some(norm), Some(output_norm)) = (&self.norm, &self.output_norm) {
            if self.is_post_norm {
                let output = output_norm.forward_residual(sublayer(x, None)?, residual)?;
                return norm.forward_residual(output, residual);
            }
            return Ok((output_norm.forward(sublayer(&norm.forward(x.copy()?)?, None)?)? + residual)?);
        }
        if let (Some(norm), Some(scale)) = (&self.norm, self.scale) {
            return Ok((sublayer(&norm.forward(x.copy()?)?, None)?.affine(scale, 0.0)? + residual)?);
        }
        match &self.norm {
            // The fused norm adds the residual.
            Some(norm) if self.is_post_norm => norm.forward_residual(sublayer(x, None)?, residual),
            Some(norm) => sublayer(&norm.forward(x.copy()?)?, Some(residual)),
            None => sublayer(x, Some(residual)),
        }
    }
}
