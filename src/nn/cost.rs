//! What an encoder costs, as formulas of its spec: parameters by component, and multiply-adds for a text of
//! `n` tokens. Pure functions; tests compare them with what [`Encoder::load`](super::Encoder::load) asks a
//! [`ParameterCount`](super::ParameterCount) for, and with the reference implementation's parameters and
//! profiler.

use super::formula::{Formula, Symbol};
use super::{
    Activation, Component, Disentangled, EmbeddingNorm, EncoderSpec, ExpertsSpec, HeadSpec, NormPlacement,
    Positions, PostPoolingSpec, ProjectedEmbeddings, QkNorm, ScoreBias, SlidingWindow, TorchActivation,
};
/// The parameters of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentParameters {
    /// The component.
    pub component: Component,
    /// The parameters of one copy.
    pub each: Formula,
    /// Copies with weights of their own: one per layer, or with shared layers one per set of weights.
    pub copies: usize,
}

/// Multiply-adds of the matrix products of a part of the forward pass. Lookups, norms, activations and the
/// softmax are not counted, nor are they by `torch.utils.flop_counter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The part.
    pub name: &'static str,
    /// How it grows with the number of tokens.
    pub growth: Growth,
    /// The multiply-adds of one run of the part; `n` is the number of tokens.
    pub each: Formula,
    /// Runs per forward pass: one per layer, shared weights or not.
    pub runs: usize,
}

/// How the work of a part grows with the number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Computed once per model, not per text: the projections of relative embeddings.
    Once,
    /// The same for every text: what follows pooling.
    PerText,
    /// Proportional to the tokens.
    Linear,
    /// Proportional to the pairs of tokens.
    Quadratic,
}

impl ComponentParameters {
    /// The parameters of all copies; saturates.
    pub fn total(&self) -> usize {
        self.each.value().saturating_mul(self.copies)
    }
}

impl Work {
    /// The multiply-adds of all runs; saturates.
    pub fn total(&self) -> usize {
        self.each.value().saturating_mul(self.runs)
    }
}

/// The sizes of a spec as formulas of one letter each. Sizes that are equal in most models have the same
/// letter there: the widths of queries, keys and values are `d` if they are the hidden size.
struct Sizes {
    hidden: Formula,
    /// Width of the sublayers.
    width: Formula,
    /// Inputs of the projection to values.
    value_inputs: Formula,
    embedding: Formula,
    intermediate: Formula,
    heads: Formula,
    /// Heads of the softmax.
    softmax_heads: Formula,
    /// Heads of the weighted sum of values.
    value_heads: Formula,
    /// Columns of all queries, and of the relative embeddings' projections.
    query: Formula,
    key: Formula,
    value: Formula,
    /// Columns of all attended values.
    attended: Formula,
    /// Head dim of queries and keys.
    head_dim: Formula,
}

fn symbol(letter: char, size: usize, meaning: &'static str) -> Formula {
    Symbol { letter, size, meaning }.into()
}

impl Sizes {
    fn new(spec: &EncoderSpec) -> Self {
        let hidden = symbol('d', spec.hidden_size, "hidden size");
        let heads = symbol('h', spec.heads, "heads");
        let unless_equal = |size: usize, same: usize, formula: &Formula, other: Formula| {
            if size == same { formula.clone() } else { other }
        };
        let head_dim = symbol('k', spec.qk_head_dim, "head dim");
        let v_dim = symbol('v', spec.v_head_dim, "head dim of values");
        let v_dim = unless_equal(spec.v_head_dim, spec.qk_head_dim, &head_dim, v_dim);
        let pre = symbol('p', spec.softmax_heads(), "heads of the softmax");
        let softmax_heads = unless_equal(spec.softmax_heads(), spec.heads, &heads, pre);
        let post = symbol('t', spec.value_heads(), "heads of values");
        let value_heads = unless_equal(spec.value_heads(), spec.softmax_heads(), &softmax_heads, post);
        let shared = symbol('g', spec.key_value_heads, "key and value heads");
        let key_heads = unless_equal(spec.key_value_heads, spec.heads, &heads, shared.clone());
        // Talking heads and grouped-query attention exclude each other.
        let stored_values = unless_equal(spec.key_value_heads, spec.heads, &value_heads, shared);
        let bottleneck = symbol('B', spec.sublayer_width(), "bottleneck size");
        let sublayer = unless_equal(spec.sublayer_width(), spec.hidden_size, &hidden, bottleneck);
        let width = |heads: &Formula, dim: &Formula| match heads * dim {
            product if product.value() == sublayer.value() => sublayer.clone(),
            product => product,
        };
        Sizes {
            embedding: unless_equal(
                spec.embedding_size,
                spec.hidden_size,
                &hidden,
                symbol('e', spec.embedding_size, "embedding size"),
            ),
            intermediate: symbol('f', spec.intermediate_size, "feed-forward size"),
            query: width(&heads, &head_dim),
            key: width(&key_heads, &head_dim),
            value: width(&stored_values, &v_dim),
            attended: width(&value_heads, &v_dim),
            head_dim,
            value_inputs: unless_equal(spec.value_inputs(), spec.sublayer_width(), &sublayer, hidden.clone()),
            width: sublayer,
            hidden,
            heads,
            softmax_heads,
            value_heads,
        }
    }

    /// The weights of a norm of this `width`.
    fn norm(spec: &EncoderSpec, width: &Formula) -> Formula {
        width.clone().times(1 + usize::from(spec.norm.bias))
    }

    /// Elements of the matrices of the query, key, value and output projections.
    fn attention_matrices(&self) -> Formula {
        let Sizes { width, value_inputs, query, key, value, attended, .. } = self;
        width * query + width * key + value_inputs * value + width * attended
    }

    /// Elements of the projections across heads before and after the softmax: also their multiply-adds for
    /// each pair of tokens.
    fn across_heads(&self, spec: &EncoderSpec) -> Formula {
        let Sizes { heads, softmax_heads, value_heads, .. } = self;
        (softmax_heads * heads).when(spec.talking_heads.pre_softmax.is_some())
            + (value_heads * softmax_heads).when(spec.talking_heads.post_softmax.is_some())
    }

    /// Elements of the matrices of a router and of `number` of its experts.
    fn experts(&self, spec: &EncoderSpec, number: impl Fn(&ExpertsSpec) -> usize) -> Formula {
        let Some(experts) = &spec.experts else { return Formula::default() };
        let all = symbol('E', experts.count, "experts");
        let of_token = symbol('K', experts.per_token, "experts of a token");
        let number = if number(experts) == experts.count { all.clone() } else { of_token };
        &all * &self.hidden + (&(&self.hidden * &self.intermediate) * &number).times(2)
    }

    /// Elements of the matrices of the feed-forward network.
    fn feed_forward_matrices(&self, spec: &EncoderSpec) -> Formula {
        (&self.width * &self.intermediate).times(2 + usize::from(spec.gated))
    }

    /// Elements of the projections of global attention to queries, keys and values.
    fn global_projections(&self) -> Formula {
        (&self.width * &self.query).times(3)
    }

    /// Elements of the matrices of so many bottlenecks of a layer.
    fn bottleneck_matrices(&self, count: usize) -> Formula {
        (&self.hidden * &self.width).times(count)
    }

    /// Inputs of the embedding projection.
    fn projection_inputs(&self, spec: &EncoderSpec) -> Formula {
        self.embedding.clone().times(spec.projection_inputs() / spec.embedding_size)
    }
}

/// Rows of the table of relative embeddings, and how many of the terms c2p and p2c scores have.
fn relative_embeddings(spec: &EncoderSpec) -> Option<(Formula, usize, &Disentangled)> {
    let ScoreBias::Disentangled(relative) = &spec.score_bias else { return None };
    let rows = symbol('r', relative.relative_positions, "relative positions in each direction").times(2);
    Some((rows, usize::from(relative.c2p) + usize::from(relative.p2c), relative))
}

/// The kernel of the convolution beside the first layer, if there is one: elements, and multiply-adds per
/// token.
fn convolution_kernel(spec: &EncoderSpec, sizes: &Sizes) -> Option<Formula> {
    let kernel = symbol('w', spec.convolution?.kernel_size, "kernel size");
    Some(&(&sizes.hidden * &sizes.hidden) * &kernel)
}

/// Layers whose feed-forward network is a mixture of experts.
fn expert_layers(spec: &EncoderSpec) -> usize {
    let layers = spec.experts.iter().flat_map(|experts| &experts.layers);
    layers.filter(|has_experts| **has_experts).count()
}

/// The parameters of experts that a token is not routed to; saturates.
pub fn idle_parameters(spec: &EncoderSpec) -> usize {
    let sizes = Sizes::new(spec);
    let of = |number: fn(&ExpertsSpec) -> usize| sizes.experts(spec, number).value();
    let idle = of(|experts| experts.count).saturating_sub(of(|experts| experts.per_token));
    idle.saturating_mul(expert_layers(spec))
}

/// The parameters of an encoder by component, those without parameters left out. Weights that several layers
/// share are counted once.
pub fn encoder_parameters(spec: &EncoderSpec) -> Vec<ComponentParameters> {
    let sizes = Sizes::new(spec);
    let hidden = &sizes.hidden;
    let layers = spec.layer_sharing.groups.saturating_mul(spec.layer_sharing.inner);
    let (expert_layers, convolutions) = (expert_layers(spec), spec.convolution_layers());
    let layer_norms = match spec.norm_placement {
        NormPlacement::SandwichAndFinal => 4,
        NormPlacement::NestedPost => 3,
        _ => 2,
    };
    let final_norm = usize::from(spec.norm_placement.has_final_norm());
    let layer_norms = layer_norms + spec.feed_forwards - 1;
    let norms = layer_norms * layers - usize::from(spec.skip_first_norm) + final_norm;
    let convolution = convolution_kernel(spec, &sizes)
        .map(|kernel| kernel + hidden.clone() + Sizes::norm(spec, hidden))
        .unwrap_or_default();
    let components = [
        (Component::Embeddings, embedding_parameters(spec, &sizes), 1),
        (Component::RelativePositions, relative_position_parameters(spec, &sizes), 1),
        (Component::Attention, attention_parameters(spec, &sizes), layers - convolutions),
        (Component::Bottlenecks, bottleneck_parameters(spec, &sizes), layers),
        (
            Component::FeedForward,
            feed_forward_parameters(spec, &sizes),
            (layers - expert_layers) * spec.feed_forwards,
        ),
        (Component::Experts, sizes.experts(spec, |experts| experts.count) + hidden.clone(), expert_layers),
        (Component::Norms, Sizes::norm(spec, &sizes.width), norms),
        (Component::Convolution, convolution, 1),
        (Component::ShortConvolutions, short_convolution_parameters(spec, &sizes), convolutions),
    ];
    let component = |(component, each, copies)| ComponentParameters { component, each, copies };
    components.into_iter().filter(|(_, each, copies)| !each.is_zero() && *copies > 0).map(component).collect()
}

fn embedding_parameters(spec: &EncoderSpec, sizes: &Sizes) -> Formula {
    let Sizes { hidden, embedding, .. } = sizes;
    let is_learned = matches!(spec.positions, Positions::Learned(_));
    let table = |letter, rows: Option<usize>, meaning, columns: &Formula| {
        &symbol(letter, rows.unwrap_or(0), meaning) * columns
    };
    let others = match spec.projected {
        ProjectedEmbeddings::Sum => embedding,
        ProjectedEmbeddings::Token | ProjectedEmbeddings::Trigram => hidden,
    };
    let norm = match spec.embedding_norm {
        EmbeddingNorm::None => Formula::default(),
        EmbeddingNorm::BeforeProjection => Sizes::norm(spec, embedding),
        EmbeddingNorm::AfterProjection => Sizes::norm(spec, hidden),
    };
    let projection = &sizes.projection_inputs(spec) * hidden + hidden.clone().when(spec.bias.projection);
    table('V', Some(spec.vocab_size), "vocabulary", embedding)
        + table('P', is_learned.then_some(spec.max_positions), "positions", others)
        + table('S', spec.token_types, "token types", others)
        + table('Z', spec.task_types, "task types", others)
        + norm
        + projection.when(spec.embedding_projection)
}

/// The parameters of a table of bucketed relative biases, and whether each layer has one.
fn relative_biases(spec: &EncoderSpec, sizes: &Sizes) -> Option<(Formula, bool)> {
    let ScoreBias::Bucketed { rows, per_layer, .. } = spec.score_bias else { return None };
    Some((&symbol('b', rows, "buckets of relative positions") * &sizes.heads, per_layer))
}

fn relative_position_parameters(spec: &EncoderSpec, sizes: &Sizes) -> Formula {
    if let Some((biases, false)) = relative_biases(spec, sizes) {
        return biases;
    }
    let parameters = |(rows, _, relative): (Formula, usize, &Disentangled)| {
        &rows * &sizes.hidden + Sizes::norm(spec, &sizes.hidden).when(relative.norm)
    };
    relative_embeddings(spec).map(parameters).unwrap_or_default()
}

/// The parameters of the bottlenecks of a layer.
fn bottleneck_parameters(spec: &EncoderSpec, sizes: &Sizes) -> Formula {
    let Some(bottleneck) = spec.bottleneck else { return Formula::default() };
    let Sizes { hidden, width, .. } = sizes;
    let inputs = 1 + usize::from(bottleneck.own_attention);
    sizes.bottleneck_matrices(inputs + 1)
        + (width.clone() + Sizes::norm(spec, width)).times(inputs)
        + hidden.clone()
        + Sizes::norm(spec, hidden)
}

/// Elements of the matrices of a gated convolution.
fn gated_convolution_matrices(sizes: &Sizes) -> Formula {
    (&sizes.hidden * &sizes.hidden).times(4)
}

fn short_convolution_parameters(spec: &EncoderSpec, sizes: &Sizes) -> Formula {
    let Some(convolution) = &spec.short_convolution else { return Formula::default() };
    gated_convolution_matrices(sizes)
        + &sizes.hidden * &symbol('w', convolution.kernel_size, "kernel size")
        + sizes.hidden.clone().times(5).when(convolution.bias)
}

fn attention_parameters(spec: &EncoderSpec, sizes: &Sizes) -> Formula {
    let Sizes { hidden, width, query, key, value, .. } = sizes;
    let biases = (query.clone() + value.clone()).when(spec.bias.query_value)
        + key.clone().when(spec.bias.key)
        + width.clone().when(spec.bias.attention_output);
    let own_projections = match relative_embeddings(spec) {
        Some((_, terms, relative)) if !relative.shared_projections => {
            (hidden * query).times(terms) + query.clone().times(relative.projection_biases())
        }
        _ => Formula::default(),
    };
    let qk_norms = match spec.qk_norm {
        QkNorm::None => Formula::default(),
        QkNorm::PerHead => Sizes::norm(spec, &sizes.head_dim).times(2),
        QkNorm::AllHeads => Sizes::norm(spec, query) + Sizes::norm(spec, key),
    };
    let relative_biases = relative_biases(spec, sizes).filter(|(_, per_layer)| *per_layer);
    let relative_biases = relative_biases.map(|(biases, _)| biases).unwrap_or_default();
    let global = sizes.global_projections()
        + query.clone().times(2).when(spec.bias.query_value)
        + query.clone().when(spec.bias.key);
    sizes.attention_matrices()
        + global.when(spec.global_tokens.is_some())
        + own_projections
        + biases
        + qk_norms
        + sizes.across_heads(spec)
        + relative_biases
}

fn feed_forward_parameters(spec: &EncoderSpec, sizes: &Sizes) -> Formula {
    let up_biases = sizes.intermediate.clone().times(1 + usize::from(spec.gated)).when(spec.bias.up);
    let learned = match spec.activation {
        Activation::Prelu { .. } => 1,
        Activation::Xielu(_) => 2,
        _ => 0,
    };
    sizes.feed_forward_matrices(spec)
        + up_biases
        + sizes.width.clone().when(spec.bias.down)
        + Formula::number(learned)
}

/// The parameters of BERT's pooler for hidden states of `hidden_size`.
pub fn pooler_parameters(spec: &EncoderSpec) -> ComponentParameters {
    let bias = spec.pooler.dense.is_some_and(|dense| dense.bias);
    let each = pooler_matrix(spec) + pooler_outputs(spec).when(bias);
    ComponentParameters { component: Component::Pooler, each, copies: 1 }
}

/// The matrix of the pooler; nothing without one.
fn pooler_matrix(spec: &EncoderSpec) -> Formula {
    let matrix = &symbol('d', spec.hidden_size, "hidden size") * &pooler_outputs(spec);
    matrix.when(spec.pooler.dense.is_some())
}

/// The outputs of the pooler.
fn pooler_outputs(spec: &EncoderSpec) -> Formula {
    match spec.pooler.outputs(spec.hidden_size) {
        outputs if outputs == spec.hidden_size => symbol('d', outputs, "hidden size"),
        outputs => symbol('q', outputs, "outputs of the pooler"),
    }
}

/// The parameters of a post-pooling module.
pub fn module_parameters(module: &PostPoolingSpec) -> ComponentParameters {
    let each = match *module {
        PostPoolingSpec::Dense { outputs, bias, activation, .. } => {
            let learned = matches!(activation, TorchActivation::Fused(Activation::Prelu { .. }));
            module_matrices(module)
                + symbol('o', outputs, "outputs").when(bias)
                + Formula::number(usize::from(learned))
        }
        PostPoolingSpec::LayerNorm { width } => symbol('i', width, "inputs").times(2),
        PostPoolingSpec::Normalize | PostPoolingSpec::TanhInt8 => Formula::default(),
    };
    ComponentParameters { component: Component::PostPooling, each, copies: 1 }
}

/// Elements of the matrices of a post-pooling module. The residual of a dense layer has a matrix if the
/// dimensions differ.
fn module_matrices(module: &PostPoolingSpec) -> Formula {
    match *module {
        PostPoolingSpec::Dense { inputs, outputs, residual, .. } => {
            let matrices = 1 + usize::from(residual && inputs != outputs);
            (&symbol('i', inputs, "inputs") * &symbol('o', outputs, "outputs")).times(matrices)
        }
        PostPoolingSpec::LayerNorm { .. } | PostPoolingSpec::Normalize | PostPoolingSpec::TanhInt8 => {
            Formula::default()
        }
    }
}

/// The multiply-adds of an encoder for one text of `tokens` tokens, parts without any left out. Attention is
/// that of all pairs of tokens, as an implementation computes it that masks scores; see [`windowed_pairs`].
pub fn encoder_work(spec: &EncoderSpec, tokens: usize) -> Vec<Work> {
    let sizes = Sizes::new(spec);
    let Sizes { hidden, query, attended, .. } = &sizes;
    let n = symbol('n', tokens, "tokens");
    let convolutions = spec.convolution_layers();
    let layers = spec.layers.saturating_mul(spec.layer_sharing.inner);
    let attention_layers = layers - convolutions;
    let (rows, terms) =
        relative_embeddings(spec).map_or_else(Default::default, |(rows, terms, _)| (rows, terms));
    let kernel = convolution_kernel(spec, &sizes).unwrap_or_default();
    let projection = (&sizes.projection_inputs(spec) * hidden).when(spec.embedding_projection);
    let bottlenecks = spec
        .bottleneck
        .map_or(0, |bottleneck| 2 + usize::from(bottleneck.own_attention && !bottleneck.shared_input));
    let pair = query.clone() + attended.clone() + sizes.across_heads(spec);
    let parts = [
        ("embedding projection", Growth::Linear, &projection * &n, 1),
        ("bottlenecks", Growth::Linear, &sizes.bottleneck_matrices(bottlenecks) * &n, layers),
        ("attention projections", Growth::Linear, &sizes.attention_matrices() * &n, attention_layers),
        ("relative positions", Growth::Linear, (&(&rows * query) * &n).times(terms), layers),
        (
            "feed-forward",
            Growth::Linear,
            &sizes.feed_forward_matrices(spec) * &n,
            (layers - expert_layers(spec)) * spec.feed_forwards,
        ),
        (
            "experts",
            Growth::Linear,
            &sizes.experts(spec, |experts| experts.per_token) * &n,
            expert_layers(spec),
        ),
        ("convolution", Growth::Linear, &kernel * &n, 1),
        ("short convolutions", Growth::Linear, &gated_convolution_matrices(&sizes) * &n, convolutions),
        ("attention", Growth::Quadratic, &(&pair * &n) * &n, attention_layers),
        ("relative projections", Growth::Once, (&(&rows * hidden) * query).times(terms), layers),
    ];
    let work = |(name, growth, each, runs)| Work { name, growth, each, runs };
    parts.into_iter().filter(|(_, _, each, runs)| !each.is_zero() && *runs > 0).map(work).collect()
}

/// The multiply-adds of BERT's pooler.
pub fn pooler_work(spec: &EncoderSpec) -> Work {
    Work { name: "pooler", growth: Growth::PerText, each: pooler_matrix(spec), runs: 1 }
}

/// The multiply-adds of a post-pooling module for a vector, or for those of each of so many tokens.
pub fn module_work(module: &PostPoolingSpec, tokens: Option<usize>) -> Work {
    let of_vector = module_matrices(module);
    let (growth, each) = match tokens {
        None => (Growth::PerText, of_vector),
        Some(tokens) => (Growth::Linear, &of_vector * &symbol('n', tokens, "tokens")),
    };
    Work { name: "after pooling", growth, each, runs: 1 }
}

/// The multiply-adds of a task head for one text or, if it is [per token](HeadSpec::is_per_token), for one
/// token: those of the dense layer before the last one, and of the last one.
pub fn head_work(head: &HeadSpec, hidden_size: usize) -> Formula {
    let hidden = symbol('d', hidden_size, "hidden size");
    let (has_dense, width, outputs) = match head {
        HeadSpec::SequenceClassification(spec) | HeadSpec::NextSentence(spec) => {
            (spec.transform.is_some(), hidden.clone(), symbol('l', spec.labels, "labels"))
        }
        HeadSpec::CausalLm(_) => (false, hidden.clone(), symbol('l', 1, "labels")),
        HeadSpec::TokenClassification(spec)
        | HeadSpec::QuestionAnswering(spec)
        | HeadSpec::LexicalWeights(spec) => {
            (spec.transform.is_some(), hidden.clone(), symbol('l', spec.outputs, "labels"))
        }
        HeadSpec::MaskedLm(spec) => {
            let width = symbol('e', spec.width, "embedding size");
            let width = if spec.width == hidden_size { hidden.clone() } else { width };
            (spec.transform.is_some(), width, symbol('V', spec.vocab_size, "vocabulary"))
        }
    };
    (&hidden * &width).when(has_dense) + &width * &outputs
}

/// The pairs of a query and a key within the sliding windows, summed over all layers, and all pairs;
/// saturates. Both are equal without a window. Within a window of radius `r`, `n > r` tokens have
/// `n (2 r + 1) − r (r + 1)` pairs.
pub fn windowed_pairs(spec: &EncoderSpec, tokens: usize) -> (usize, usize) {
    let all = tokens.saturating_mul(tokens);
    let layers = spec.layers.saturating_mul(spec.layer_sharing.inner) - spec.convolution_layers();
    let Some(SlidingWindow { radius, layers: is_local }) = &spec.mask.sliding_window else {
        return (all.saturating_mul(layers), all.saturating_mul(layers));
    };
    let r = (*radius).min(tokens.saturating_sub(1));
    let one_side = tokens.saturating_mul(r) - r.saturating_mul(r + 1) / 2;
    let windowed = tokens.saturating_add(one_side.saturating_mul(if spec.mask.causal { 1 } else { 2 }));
    let local =
        is_local.iter().filter(|is_local| **is_local).count().saturating_mul(spec.layer_sharing.inner);
    let within = windowed.saturating_mul(local).saturating_add(all.saturating_mul(layers - local));
    (within, all.saturating_mul(layers))
}

/// The smallest number of tokens for which attention takes more multiply-adds than the linear part, each
/// query with the keys in its window; `None` if that is more than 2³⁰.
pub fn attention_overtakes(spec: &EncoderSpec) -> Option<usize> {
    let one = encoder_work(spec, 1);
    let sum = |growth| {
        let parts = one.iter().filter(|work| work.growth == growth);
        parts.map(Work::total).fold(0usize, usize::saturating_add) as f64
    };
    // The multiply-adds of a pair, which are the same in all layers.
    let layers = spec.layers.saturating_mul(spec.layer_sharing.inner) - spec.convolution_layers();
    let (linear, pair) = (sum(Growth::Linear), sum(Growth::Quadratic) / layers as f64);
    let overtakes = |n: usize| windowed_pairs(spec, n).0 as f64 * pair > n as f64 * linear;
    let (mut below, mut above) = (0, 1 << 30);
    if !overtakes(above) {
        return None;
    }
    while above - below > 1 {
        let middle = (below + above) / 2;
        if overtakes(middle) {
            above = middle;
        } else {
            below = middle;
        }
    }
    Some(above)
}
