//! The parts of a model that parameters are counted for.

use crate::named::names;

/// A part of a model that parameters are counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// Embedding tables with their norm, and the projection to the hidden size.
    Embeddings,
    /// Relative position tables, which all layers share, with their norm.
    RelativePositions,
    /// Linear layers of attention, norms of queries and keys, and projections across heads.
    Attention,
    /// Linear layers and norms of the bottlenecks around the sublayers.
    Bottlenecks,
    /// Linear layers of the feed-forward networks, and parameters of their activation.
    FeedForward,
    /// Routers and experts of the layers that have them in place of a feed-forward network.
    Experts,
    /// Norms of the layers, and the final norm.
    Norms,
    /// The convolution beside the first layer, with its norm.
    Convolution,
    /// Linear layers and taps of the short convolutions in the place of attention.
    ShortConvolutions,
    /// BERT's pooler, in models whose vectors come from it.
    Pooler,
    /// Post-pooling modules.
    PostPooling,
}

names!(Component {
    Embeddings => "embeddings",
    RelativePositions => "relative positions",
    Attention => "attention",
    Bottlenecks => "bottlenecks",
    FeedForward => "feed-forward",
    Experts => "experts",
    Norms => "norms",
    Convolution => "convolution",
    ShortConvolutions => "short convolutions",
    Pooler => "pooler",
    PostPooling => "after pooling",
});

impl Component {
    /// The component of a tensor, by its canonical name.
    pub fn of(name: &str) -> Self {
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        match name.split('.').next().unwrap_or_default() {
            "embeddings" => Component::Embeddings,
            "relative_bias" | "distances" | "distances_norm" => Component::RelativePositions,
            "convolution" | "convolution_norm" => Component::Convolution,
            "pooler" => Component::Pooler,
            "final_norm" => Component::Norms,
            "layers" if name.contains(".bottleneck.") => Component::Bottlenecks,
            "layers" if name.contains(".short_convolution.") => Component::ShortConvolutions,
            "layers" if name.contains(".attention.") => Component::Attention,
            "layers" if module.ends_with("_norm") => Component::Norms,
            "layers" if module.ends_with(".router") || name.contains(".experts.") => Component::Experts,
            "layers" => Component::FeedForward,
            _ => Component::PostPooling,
        }
    }
}
