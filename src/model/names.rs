//! From canonical names (`layers.0.0.attention.query.weight`: group, layer in the group) to what a checkpoint calls
//! them.

/// How a family names its tensors.
pub struct Names {
    /// What may stand before every name; the first that fits the checkpoint is taken.
    pub prefixes: &'static [&'static str],
    /// Canonical module, its numbers left out → checkpoint module, in which `{}` takes the numbers in their order.
    pub modules: &'static [&'static [(&'static str, &'static str)]],
}

impl Names {
    /// The prefix of a checkpoint, decided by where its token embedding table stands, or `None` if it has no
    /// such table.
    pub fn prefix(&self, has: impl Fn(&str) -> bool) -> Option<&'static str> {
        let name = |prefix: &str| self.checkpoint_name(prefix, "embeddings.token.weight");
        self.prefixes.iter().copied().find(|prefix| has(&name(prefix)))
    }

    /// The checkpoint's name for a canonical one.
    ///
    /// # Panics
    /// If the family has no row for the module: a fault in the table, not in a file.
    pub fn checkpoint_name(&self, prefix: &str, canonical: &str) -> String {
        let (module, parameter) = canonical.rsplit_once('.').expect("a name ends in .weight or .bias");
        let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
        let (numbers, words): (Vec<&str>, Vec<&str>) = module.split('.').partition(is_number);
        let module = words.join(".");
        let (_, name) = self
            .modules
            .iter()
            .copied()
            .flatten()
            .find(|(canonical, _)| *canonical == module)
            .unwrap_or_else(|| panic!("the family table has no name for {module}"));
        let name =
            numbers.into_iter().fold((*name).to_owned(), |name, number| name.replacen("{}", number, 1));
        format!("{prefix}{name}.{parameter}")
    }
}
