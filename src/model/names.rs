//! From canonical names (`layers.0.attention.query.weight`) to what a checkpoint calls them.

/// How a family names its tensors.
pub struct Names {
    /// What may stand before every name; the first that fits the checkpoint is taken.
    pub prefixes: &'static [&'static str],
    /// Canonical module → checkpoint module; `{}` stands for the layer.
    pub modules: &'static [(&'static str, &'static str)],
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
        // layers.7.attention.query → layers.{}.attention.query and 7
        let parts: Vec<&str> = module.split('.').collect();
        let layer = parts.iter().find(|part| part.bytes().all(|b| b.is_ascii_digit())).copied().unwrap_or("");
        let pattern: Vec<&str> = parts.iter().map(|part| if *part == layer { "{}" } else { *part }).collect();
        let pattern = pattern.join(".");
        let (_, name) = self
            .modules
            .iter()
            .find(|(module, _)| *module == pattern)
            .unwrap_or_else(|| panic!("the family table has no name for {pattern}"));
        format!("{prefix}{}.{parameter}", name.replace("{}", layer))
    }
}
