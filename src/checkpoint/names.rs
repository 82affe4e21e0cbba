//! Tensor names: from canonical names (`layers.0.0.attention.query.weight`: group, layer in the group,
//! module, parameter) to those of a checkpoint.

/// How checkpoints of a family name their tensors.
///
/// Modules are listed as pairs of canonical name and checkpoint name; of several lists the first that has a
/// module is used. A checkpoint name that ends in `[1/3]` is the second of three equal parts of a tensor's
/// rows (a fused projection), one in `[1/3 per head]` that of the rows of each attention head. One that ends
/// in `=` is the name of a tensor without a parameter; an empty one is that of a module whose tensors have
/// the names of their parameters alone. In the place of a module stands a parameter that has a name of its
/// own. A module of several that are numbered has `{}` in the place of its number in both names.
pub struct TensorNames {
    /// Prefixes that all names may have; the first that fits the checkpoint is used.
    pub prefixes: &'static [&'static str],
    /// Modules outside the layers.
    pub model_modules: &'static [ModuleNames],
    /// Prefix of a layer; each `{}` is replaced by one of the numbers of the canonical name, in order.
    pub layer_prefix: &'static str,
    /// Modules of a layer, without its prefix.
    pub layer_modules: &'static [ModuleNames],
    /// Modules of the task heads, whose names have no prefix.
    pub head_modules: &'static [ModuleNames],
}

/// Pairs of canonical module and checkpoint module.
pub type ModuleNames = &'static [(&'static str, &'static str)];

/// A tensor of a checkpoint, or some of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRef {
    /// The checkpoint's name.
    pub name: String,
    /// Which of its rows.
    pub part: RowPart,
}

/// One of several equal parts of the rows of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPart {
    /// The index of the part.
    pub index: usize,
    /// The number of parts.
    pub parts: usize,
    /// Whether the rows of each attention head are divided, and not all rows at once.
    pub per_head: bool,
}

impl RowPart {
    /// The whole tensor.
    pub const WHOLE: RowPart = RowPart { index: 0, parts: 1, per_head: false };

    /// The number of runs of rows that the part consists of.
    pub fn runs(&self, heads: usize) -> usize {
        if self.per_head { heads } else { 1 }
    }
}

impl TensorNames {
    /// The naming and the prefix that fit a checkpoint best: they must name its token embedding table, and if
    /// possible its first layer.
    pub fn choose(
        namings: &'static [TensorNames],
        has: impl Fn(&str) -> bool,
    ) -> Option<(&'static TensorNames, &'static str)> {
        let pairs =
            || namings.iter().flat_map(|names| names.prefixes.iter().map(move |prefix| (names, *prefix)));
        let finds =
            |(names, prefix): &(&TensorNames, &str), canonical| has(&names.resolve(prefix, canonical).name);
        let has_tokens = |pair: &_| finds(pair, "embeddings.token.weight");
        let has_layer = |pair: &_| finds(pair, "layers.0.0.attention.output.weight");
        pairs().find(|pair| has_tokens(pair) && has_layer(pair)).or_else(|| pairs().find(has_tokens))
    }

    /// Whether the naming has a name for a tensor, by its canonical name.
    pub fn names(&self, canonical: &str) -> bool {
        let module = canonical.rsplit_once('.').map_or(canonical, |(module, _)| module);
        let (lists, module) = match module.strip_prefix("layers.") {
            Some(rest) => (self.layer_modules, rest.splitn(3, '.').nth(2).unwrap_or_default()),
            None if module.starts_with("head.") => (self.head_modules, module),
            None => (self.model_modules, module),
        };
        let has = |module: &str| lists.iter().copied().flatten().any(|(known, _)| *known == module);
        has(module) || number_of(module).is_some_and(|(numbered, _)| has(&numbered))
    }

    /// Whether the family has a module of this canonical name outside the layers.
    pub fn has_module(&self, module: &str) -> bool {
        self.model_modules.iter().copied().flatten().any(|(canonical, _)| *canonical == module)
    }

    /// Whether the family has a module of a task head with this canonical name.
    pub fn has_head(&self, module: &str) -> bool {
        self.head_modules.iter().copied().flatten().any(|(canonical, _)| *canonical == module)
    }

    /// Whether an adapter's tensor is of a task head by its name.
    pub fn is_head_tensor(&self, name: &str) -> bool {
        let module = name.rsplit_once('.').map_or("", |(module, _)| module);
        self.head_modules
            .iter()
            .copied()
            .flatten()
            .any(|(_, known)| known.trim_end_matches('=') == module && !module.is_empty())
    }

    /// Whether a checkpoint's tensor belongs to the encoder of this family by its name; the pooler and the
    /// projections of global attention do not.
    pub fn is_encoder_tensor(&self, prefix: &str, name: &str) -> bool {
        let Some((module, _)) = name.strip_prefix(prefix).and_then(|name| name.rsplit_once('.')) else {
            return false;
        };
        // Encoders without a head have neither the pooler nor global attention.
        let is_optional = |canonical: &str| canonical == "pooler" || canonical.ends_with("_global");
        let has =
            |lists: &[ModuleNames], module: &str| {
                lists.iter().copied().flatten().any(|(canonical, name)| {
                    !is_optional(canonical) && name.split('[').next() == Some(module)
                })
            };
        let has = |lists: &[ModuleNames], module: &str| {
            has(lists, module) || number_of(module).is_some_and(|(numbered, _)| has(lists, &numbered))
        };
        has(self.model_modules, module)
            || self.strip_layer_prefix(module).is_some_and(|module| has(self.layer_modules, module))
    }

    /// A checkpoint's module without the prefix of its layer; `None` if it is in no layer.
    fn strip_layer_prefix<'a>(&self, module: &'a str) -> Option<&'a str> {
        let mut rest = module;
        for piece in self.layer_prefix.split_inclusive("{}.") {
            rest = rest.strip_prefix(piece.trim_end_matches("{}."))?;
            let (number, module) = rest.split_once('.')?;
            if !number.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            rest = module;
        }
        Some(rest)
    }

    /// The checkpoint's tensor for a canonical name.
    ///
    /// # Panics
    /// If the family names no such module: a fault of the family table, not of a file.
    pub fn resolve(&self, prefix: &str, canonical: &str) -> TensorRef {
        let (module, parameter) = canonical.rsplit_once('.').expect("a name ends in .weight or .bias");
        let look_up = |lists: &[ModuleNames], module: &str| {
            let find = |name: &str| lists.iter().copied().flatten().find(|(canonical, _)| *canonical == name);
            let pair = find(&format!("{module}.{parameter}")).or_else(|| find(module));
            if let Some((_, name)) = pair {
                return (*name).to_owned();
            }
            let numbered = number_of(module);
            let name = numbered.and_then(|(module, number)| Some(find(&module)?.1.replacen("{}", number, 1)));
            name.unwrap_or_else(|| panic!("the family table has no name for {module}"))
        };
        let is_head = module.starts_with("head.");
        let prefix = if is_head { "" } else { prefix };
        let name = match module.strip_prefix("layers.") {
            None if is_head => look_up(self.head_modules, module),
            None => look_up(self.model_modules, module),
            Some(rest) => {
                let mut parts = rest.splitn(3, '.');
                let mut part = || parts.next().expect("group, layer and module");
                let (numbers, module) = ([part(), part()], part());
                let layer = numbers
                    .iter()
                    .fold(self.layer_prefix.to_owned(), |name, number| name.replacen("{}", number, 1));
                layer + &look_up(self.layer_modules, module)
            }
        };
        let (name, part) = match name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
            None => (&name[..], RowPart::WHOLE),
            Some((name, part)) => {
                let (part, per_head) = match part.strip_suffix(" per head") {
                    Some(part) => (part, true),
                    None => (part, false),
                };
                let (index, of) = part.split_once('/').expect("a part is index/number");
                let number = |n: &str| n.parse().expect("a part has two numbers");
                (name, RowPart { index: number(index), parts: number(of), per_head })
            }
        };
        let name = match name.strip_suffix('=') {
            Some(name) => format!("{prefix}{name}"),
            None if name.is_empty() => format!("{prefix}{parameter}"),
            None => format!("{prefix}{name}.{parameter}"),
        };
        TensorRef { name, part }
    }
}

/// A module with `{}` in the place of its number, and the number; `None` if its name has none.
fn number_of(module: &str) -> Option<(String, &str)> {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let number = module.split('.').find(is_number)?;
    Some((module.replacen(&format!(".{number}."), ".{}.", 1), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: TensorNames = TensorNames {
        prefixes: &["", "model."],
        model_modules: &[&[("embeddings.token", "embed"), ("pooler", "pooler.dense")]],
        layer_prefix: "groups.{}.layers.{}.",
        layer_modules: &[&[
            ("attention.query", "qkv[0/3]"),
            ("attention.key", "qkv[1/3 per head]"),
            ("attention.value", "qkv[2/3]"),
            ("attention.value.bias", "v_bias="),
            ("attention.output", "out"),
            ("stacked.{}.up", "ffn.{}.dense"),
        ]],
        head_modules: &[&[("head.classifier", "classifier"), ("head.token_classifier", "")]],
    };

    #[test]
    fn canonical_names_resolve_to_tensors_of_the_checkpoint() {
        let resolve = |canonical| NAMES.resolve("model.", canonical);
        let whole = |name: &str| TensorRef { name: name.into(), part: RowPart::WHOLE };
        let third = |name: &str, index, per_head| {
            let part = RowPart { index, parts: 3, per_head };
            TensorRef { name: format!("model.groups.2.layers.1.{name}"), part }
        };
        for (canonical, expected) in [
            ("embeddings.token.weight", whole("model.embed.weight")),
            ("layers.2.1.attention.query.bias", third("qkv.bias", 0, false)),
            ("layers.2.1.attention.key.weight", third("qkv.weight", 1, true)),
            ("layers.2.1.attention.value.weight", third("qkv.weight", 2, false)),
            ("layers.2.1.attention.value.bias", whole("model.groups.2.layers.1.v_bias")),
            ("layers.2.1.stacked.3.up.weight", whole("model.groups.2.layers.1.ffn.3.dense.weight")),
            ("head.classifier.weight", whole("classifier.weight")),
            ("head.token_classifier.bias", whole("bias")),
        ] {
            assert_eq!(resolve(canonical), expected, "{canonical}");
        }
    }

    #[test]
    fn tensors_of_the_encoder_are_told_from_others() {
        for (name, expected) in [
            ("model.embed.weight", true),
            ("model.groups.10.layers.0.qkv.weight", true),
            ("model.groups.10.layers.0.ffn.7.dense.bias", true),
            ("model.groups.10.layers.0.ffn.x.dense.bias", false),
            ("model.groups.x.layers.0.qkv.weight", false),
            ("model.groups.0.layers.0.other.weight", false),
            ("model.pooler.dense.weight", false),
            ("embed.weight", false),
        ] {
            assert_eq!(NAMES.is_encoder_tensor("model.", name), expected, "{name}");
        }
    }
}
