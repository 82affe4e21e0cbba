//! From canonical names (`layers.0.0.attention.query.weight`: group, layer in the group) to what a checkpoint calls
//! them.

/// How a checkpoint names its tensors. Of lists of pairs, canonical module and checkpoint module, the first that has
/// a module counts. A checkpoint module that ends in `[1/3]` is the second of three equal parts of the rows of a
/// tensor.
pub struct Names {
    /// What may stand before every name; the first that fits the checkpoint is taken.
    pub prefixes: &'static [&'static str],
    /// Modules outside of the layers.
    pub outside: &'static [Modules],
    /// Where a layer stands: each `{}` takes one of the numbers, in their order.
    pub layer: &'static str,
    /// Modules of a layer, without what is before them.
    pub inside: &'static [Modules],
}

/// Canonical module, checkpoint module.
pub type Modules = &'static [(&'static str, &'static str)];

/// A tensor of a checkpoint, or some of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The checkpoint's name.
    pub name: String,
    /// Which of how many equal parts of its rows; (0, 1) is all of it.
    pub part: (usize, usize),
}

impl Names {
    /// The way of naming and the prefix that fit a checkpoint best: they have to find the token embedding table, and
    /// should find the first layer.
    pub fn choose(
        ways: &'static [Names],
        has: impl Fn(&str) -> bool,
    ) -> Option<(&'static Names, &'static str)> {
        let pairs =
            || ways.iter().flat_map(|names| names.prefixes.iter().map(move |prefix| (names, *prefix)));
        let finds = |(names, prefix): &(&Names, &str), canonical| has(&names.place(prefix, canonical).name);
        let token = |pair: &_| finds(pair, "embeddings.token.weight");
        let layer = |pair: &_| finds(pair, "layers.0.0.attention.output.weight");
        pairs().find(|pair| token(pair) && layer(pair)).or_else(|| pairs().find(token))
    }

    /// Whether the family has a row for a module outside of the layers.
    pub fn has(&self, module: &str) -> bool {
        self.outside.iter().copied().flatten().any(|(canonical, _)| *canonical == module)
    }

    /// Whether a checkpoint's tensor is one of the encoder's, asked for or not; the pooler is not counted.
    pub fn knows(&self, prefix: &str, name: &str) -> bool {
        let Some((module, _)) = name.strip_prefix(prefix).and_then(|name| name.rsplit_once('.')) else {
            return false;
        };
        let stands_in = |lists: &[Modules], module: &str| {
            let is = |(canonical, name): &(&str, &str)| {
                *canonical != "pooler" && name.split('[').next() == Some(module)
            };
            lists.iter().copied().flatten().any(is)
        };
        // encoder.layer.{}.: what stands before each number, and nothing after the last.
        let mut rest = Some(module);
        for piece in self.layer.split_inclusive("{}.") {
            let before = piece.trim_end_matches("{}.");
            rest = rest.and_then(|rest| rest.strip_prefix(before)).and_then(|rest| {
                let (number, rest) = rest.split_once('.')?;
                number.bytes().all(|b| b.is_ascii_digit()).then_some(rest)
            });
        }
        stands_in(self.outside, module) || rest.is_some_and(|rest| stands_in(self.inside, rest))
    }

    /// Where a checkpoint has a canonical tensor.
    ///
    /// # Panics
    /// If the family has no row for the module: a fault in the table, not in a file.
    pub fn place(&self, prefix: &str, canonical: &str) -> Place {
        let (module, parameter) = canonical.rsplit_once('.').expect("a name ends in .weight or .bias");
        let look_up = |lists: &[Modules], module: &str| {
            let pair = lists.iter().copied().flatten().find(|(canonical, _)| *canonical == module);
            pair.unwrap_or_else(|| panic!("the family table has no name for {module}")).1
        };
        let name = match module.strip_prefix("layers.") {
            None => look_up(self.outside, module).to_owned(),
            Some(rest) => {
                let mut parts = rest.splitn(3, '.');
                let mut part = || parts.next().expect("group, layer and module");
                let (numbers, module) = ([part(), part()], part());
                let layer =
                    numbers.iter().fold(self.layer.to_owned(), |name, number| name.replacen("{}", number, 1));
                layer + look_up(self.inside, module)
            }
        };
        let (name, part) = match name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
            None => (&name[..], (0, 1)),
            Some((name, part)) => {
                let (index, of) = part.split_once('/').expect("a part is index/number");
                let number = |n: &str| n.parse().expect("a part has two numbers");
                (name, (number(index), number(of)))
            }
        };
        Place { name: format!("{prefix}{name}.{parameter}"), part }
    }
}
