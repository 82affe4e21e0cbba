//! The fields of an `adapter_config.json` as PEFT writes it. Each is used here, refused by its name, or
//! without an effect on an adapter that has been trained; the test module `adapters` walks through them.

use anyhow::{Result, bail};
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::config::{Config, MAX_SIZE};
use crate::checkpoint::low_rank::MERGE;

/// Maximum size of a compiled regular expression, in bytes.
const MAX_EXPRESSION: usize = 1 << 20;
/// The field with the trained rows of tables.
pub const TOKEN_INDICES: &str = "trainable_token_indices";

/// What an adapter's config says of its tensors.
pub struct PeftConfig {
    config: Config,
    alpha: f64,
    /// Values of `alpha_pattern`.
    alphas: Vec<(Regex, f64)>,
    /// The rank, if the file has it.
    rank: Option<usize>,
    /// Values of `rank_pattern`.
    ranks: Vec<(Regex, usize)>,
    /// Whether updates are scaled by `α / √r` and not by `α / r` (Kalajdzievski 2023).
    is_rank_stabilized: bool,
    /// Whether the rows of the sum have norms of their own (DoRA).
    pub has_magnitudes: bool,
    /// Whether updates have a bias.
    pub has_bias: bool,
    targets: Option<Names>,
    excluded: Option<Names>,
    /// The modules that were trained as a whole, which have no update.
    saved: Vec<Regex>,
    layers: Option<Vec<u64>>,
    layer_patterns: Vec<Regex>,
}

/// Names of modules: the ends of their paths, or an expression for whole paths.
enum Names {
    Ends(Vec<String>),
    Expression(Regex),
}

impl Names {
    /// A field with names; `None` without it, or if it is an expression that only Python can read.
    fn read(config: &Config, key: &str) -> Result<Option<Self>> {
        match config.get(key) {
            Some(Value::String(expression)) => {
                Ok(regex(&format!("^(?:{expression})$")).map(Names::Expression))
            }
            _ => {
                let names = config.strings(key)?.filter(|names| !names.is_empty());
                Ok(names.map(|names| Names::Ends(names.into_iter().map(str::to_owned).collect())))
            }
        }
    }

    /// Whether they have a module.
    fn has(&self, module: &str) -> bool {
        match self {
            Names::Ends(names) => names.iter().any(|name| is_end(module, name)),
            Names::Expression(expression) => expression.is_match(module),
        }
    }
}

/// Whether `name` is the path of a module or its end.
fn is_end(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// A regular expression, if it is one of this crate, too, and not too large.
fn regex(expression: &str) -> Option<Regex> {
    RegexBuilder::new(expression).size_limit(MAX_EXPRESSION).build().ok()
}

impl PeftConfig {
    /// Reads the fields of an `adapter_config.json`.
    pub fn new(config: Config) -> Result<Self> {
        check_supported(&config)?;
        let expressions = |key: &str, start: &str, end: &str| -> Result<Vec<Regex>> {
            let names = match config.get(key) {
                Some(Value::String(name)) => vec![name.as_str()],
                _ => config.strings(key)?.unwrap_or_default(),
            };
            Ok(names.iter().filter_map(|name| regex(&format!("{start}{name}{end}"))).collect())
        };
        let rank = |fields: &Config, key: &str| fields.size(key, 1..=MAX_SIZE);
        let is_all_linear = config.get("target_modules").and_then(Value::as_str);
        let is_all_linear = is_all_linear.is_some_and(|name| name.eq_ignore_ascii_case("all-linear"));
        Ok(PeftConfig {
            alpha: config.required_number("lora_alpha")?,
            alphas: patterns(&config, "alpha_pattern", Config::required_number)?,
            rank: if config.has("r") { Some(rank(&config, "r")?) } else { None },
            ranks: patterns(&config, "rank_pattern", rank)?,
            is_rank_stabilized: config.flag("use_rslora")?,
            has_magnitudes: config.flag("use_dora")?,
            has_bias: config.flag("lora_bias")?,
            targets: if is_all_linear { None } else { Names::read(&config, "target_modules")? },
            excluded: Names::read(&config, "exclude_modules")?,
            saved: expressions("modules_to_save", r"^(?:|.*\.)(?:", r")(?:$|\.)")?,
            layers: layers(&config)?,
            layer_patterns: expressions("layers_pattern", r"^(?:|.*?\.)(?:", r")\.(\d+)\.")?,
            config,
        })
    }

    /// The factor of a module's update of this rank.
    pub fn factor(&self, module: &str, rank: usize) -> Result<f32> {
        let named = first_match(&self.ranks, module).or(self.rank);
        if let Some(named) = named.filter(|named| *named != rank) {
            let key = if first_match(&self.ranks, module).is_some() { "rank_pattern" } else { "r" };
            let expected =
                format!("{rank}, the rank of the tensors of {module}; use the files of one adapter");
            bail!("{}", self.config.invalid(key, named, &expected))
        }
        let (alpha, rank) = (first_match(&self.alphas, module).unwrap_or(self.alpha), rank as f64);
        Ok((alpha / if self.is_rank_stabilized { rank.sqrt() } else { rank }) as f32)
    }

    /// The field by which PEFT leaves out the updates of a module; `None` if it uses them.
    pub fn leaves_out(&self, module: &str) -> Option<&'static str> {
        if self.excluded.as_ref().is_some_and(|names| names.has(module)) {
            return Some("exclude_modules");
        }
        if self.saved.iter().any(|saved| saved.is_match(module)) {
            return Some("modules_to_save");
        }
        match &self.targets {
            Some(targets) if !targets.has(module) => Some("target_modules"),
            Some(Names::Ends(names)) if !names.iter().any(|name| name == module) => {
                let is_one =
                    |layers: &Vec<u64>| self.layer(module).is_some_and(|layer| layers.contains(&layer));
                self.layers.as_ref().filter(|layers| !is_one(layers)).map(|_| "layers_to_transform")
            }
            _ => None,
        }
    }

    /// The index of the layer that a module is in.
    fn layer(&self, module: &str) -> Option<u64> {
        if self.layer_patterns.is_empty() {
            let parts: Vec<&str> = module.split('.').collect();
            // An index has a name before it, and one before that.
            let indices = parts.iter().take(parts.len().saturating_sub(1)).skip(2);
            return indices.filter_map(|part| part.parse().ok()).next();
        }
        self.layer_patterns.iter().find_map(|pattern| pattern.captures(module)?[1].parse().ok())
    }

    /// Whether rows of tables were trained.
    pub fn has_token_indices(&self) -> bool {
        self.config.has(TOKEN_INDICES)
    }

    /// The rows of a module's table that were trained.
    pub fn token_indices(&self, module: &str) -> Result<Vec<usize>> {
        let list = match self.config.get(TOKEN_INDICES) {
            Some(Value::Object(modules)) => {
                modules.iter().find(|(name, _)| module.ends_with(*name)).map(|(_, list)| list)
            }
            list => list,
        };
        let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok());
        match list.and_then(Value::as_array).and_then(|list| list.iter().map(index).collect()) {
            Some(indices) => Ok(indices),
            None => {
                let found = self.config.get(TOKEN_INDICES).unwrap_or(&Value::Null);
                let expected = format!("the token ids of the rows of {module} that the adapter has");
                bail!("{}", self.config.invalid(TOKEN_INDICES, found, &expected))
            }
        }
    }
}

/// Fails if a config asks for what is not supported.
fn check_supported(config: &Config) -> Result<()> {
    if let Some(other) = config.string("peft_type")?.filter(|kind| *kind != "LORA") {
        let expected = format!("\"LORA\", the only supported kind; {MERGE}");
        bail!("{}", config.invalid("peft_type", format!("{other:?}"), &expected))
    }
    if config.flag("use_qalora")? {
        bail!(
            "{}",
            config.invalid("use_qalora", true, &format!("false, since it is not supported; {MERGE}"))
        );
    }
    const EMPTY: [&str; 7] = [
        "layer_replication",
        "target_parameters",
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "monteclora_config",
        "use_bdlora",
    ];
    for key in EMPTY {
        let is_empty = match config.get(key) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::Array(list)) => list.is_empty(),
            Some(_) => false,
        };
        if !is_empty {
            let expected = format!("no such field, since it is not supported; {MERGE}");
            bail!("{}", config.invalid(key, "not empty", &expected));
        }
    }
    // With these PEFT changes the weights of the base model when it loads an adapter; a converted adapter has
    // true here.
    const KEY: &str = "init_lora_weights";
    let initial = match config.get(KEY) {
        Some(Value::Bool(_)) => "",
        _ => config.string(KEY)?.unwrap_or_default(),
    };
    let name = initial.to_lowercase();
    if ["pissa", "olora", "corda", "loftq"].iter().any(|kind| name.starts_with(kind)) {
        let expected = format!("one that leaves the weights of the base model as they are; {MERGE}");
        bail!("{}", config.invalid(KEY, format!("{initial:?}"), &expected));
    }
    Ok(())
}

/// The regular expressions of an object's keys with their values.
fn patterns<T>(
    config: &Config,
    key: &str,
    read: impl Fn(&Config, &str) -> Result<T>,
) -> Result<Vec<(Regex, T)>> {
    let Some(fields) = config.object(key)? else { return Ok(Vec::new()) };
    let pattern = |name: &String| match regex(&format!(r"^(?:.*\.)?(?:{name})$")) {
        Some(regex) => Ok((regex, read(&fields, name)?)),
        None => {
            let expected = format!("a simpler regular expression as the key of each number; {MERGE}");
            bail!("{}", config.invalid(key, format!("an object with {name:?}"), &expected))
        }
    };
    fields.fields().keys().map(pattern).collect()
}

/// The value of the first expression that matches the end of a module's path, as in PEFT.
fn first_match<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    patterns.iter().find(|(pattern, _)| pattern.is_match(module)).map(|(_, value)| *value)
}

/// The layers of `layers_to_transform`; `None` for all.
fn layers(config: &Config) -> Result<Option<Vec<u64>>> {
    const KEY: &str = "layers_to_transform";
    let layers: Option<Vec<u64>> = match config.get(KEY) {
        None => return Ok(None),
        Some(Value::Array(list)) => list.iter().map(Value::as_u64).collect(),
        Some(layer) => layer.as_u64().map(|layer| vec![layer]),
    };
    match layers {
        Some(layers) => Ok(Some(layers).filter(|layers| !layers.is_empty())),
        None => {
            let found = config.get(KEY).unwrap_or(&Value::Null);
            bail!("{}", config.invalid(KEY, found, "the index of a layer, or a list of them"))
        }
    }
}
